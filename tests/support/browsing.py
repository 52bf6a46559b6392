"""A page in a real browser, for the tests of all pages."""

import html
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--v=0", "--window-size=1400,900", "--dump-dom"),
)
SECONDS = 40  # a cold start is slow
PHONE, LAPTOP = 390, 1280
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
MEASURE = """
  const sides = node => { const box = node.getBoundingClientRect(); return [box.width, box.height]; };
  return {
    window: innerWidth,
    content: document.documentElement.scrollWidth,
    images: [...document.images].map(image => [image.complete, image.naturalWidth]),
    drawings: [...document.querySelectorAll("svg")].filter(svg => svg.checkVisibility()).map(sides),
    tables: [...document.querySelectorAll("table")].map(({parentNode: box}) => box.scrollWidth - box.clientWidth),
    paper: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.querySelector("svg text")).fill,
  };
"""


def browse(path: Path, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """The DOM after loading, and what the console said; a browser that doesn't answer is asked twice."""
    command = [str(CHROMIUM), *FLAGS, *flags, f"--user-data-dir={profile}", path.as_uri()]
    for attempt in (1, 2):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
        )
        try:
            dom, log = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the browser's own children too
            process.communicate()
            if attempt == 2:
                raise
            continue
        if "</html>" in dom:
            break
    assert "</html>" in dom, log
    return dom, [line for line in log.splitlines() if "CONSOLE" in line]


def measured(page: Path, profile: Path, *flags: str, width: int) -> dict[str, Any]:
    """Sizes of everything that is shown in a copy of the page, with all of it unfolded."""
    found: dict[str, Any] = evaluated(page, profile, MEASURE, *flags, width=width)
    assert found["window"] == width
    return found


def evaluated(page: Path, profile: Path, script: str, *flags: str, width: int | None = None) -> Any:
    """What a function with this body returns when a copy of the page, with all of it unfolded, has loaded.

    The page itself allows no other script than its own, so the copy has no policy. It stands in a frame of the wanted
    width, since a window of the browser's is never narrower than 500; without a width it has the whole window.
    """
    text, num_policies = POLICY.subn("", page.read_text())
    assert num_policies == 1
    answer = "parent.document.documentElement.dataset.answer = JSON.stringify((() => {" + script + "})())"
    asking = f'<script>addEventListener("load", () => {{ {answer}; }});</script>'
    copy = text.replace("<details>", "<details open>").replace("</body>", f"{asking}</body>")
    shown = page.with_name("shown.html")
    style = f"width: {width}px; height: 800px; border: 0"
    frame = f'<!doctype html><html><iframe style="{style}" srcdoc="{html.escape(copy)}"></iframe></html>'
    shown.write_text(copy if width is None else frame)
    dom, console = browse(shown, profile, *flags)
    assert console == []
    found = re.search(r'data-answer="([^"]*)"', dom)
    return json.loads(html.unescape(found[1]))
