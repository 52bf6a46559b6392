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
# The page itself allows no script: this one stands in a copy, in a frame of the wanted width, since a window of the
# browser's is never narrower than 500.
MEASURE = """<script>
addEventListener("load", () => {
  const sides = node => { const box = node.getBoundingClientRect(); return [box.width, box.height]; };
  const root = document.documentElement;
  parent.document.documentElement.dataset.measured = JSON.stringify({
    window: innerWidth,
    content: root.scrollWidth,
    images: [...document.images].map(image => [image.complete, image.naturalWidth]),
    drawings: [...document.querySelectorAll("svg")].map(sides),
    paper: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.querySelector("svg text")).fill,
  });
});
</script>"""


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
    """Sizes of everything in a copy of the page, with all of it unfolded."""
    text, num_policies = POLICY.subn("", page.read_text())
    assert num_policies == 1
    copy = text.replace("<details>", "<details open>").replace("</body>", f"{MEASURE}</body>")
    frame = page.with_name("frame.html")
    style = f"width: {width}px; height: 800px; border: 0"
    frame.write_text(f'<!doctype html><html><iframe style="{style}" srcdoc="{html.escape(copy)}"></iframe></html>')
    dom, console = browse(frame, profile, *flags)
    assert console == []
    told = re.search(r'data-measured="([^"]*)"', dom)
    assert told is not None
    found: dict[str, Any] = json.loads(html.unescape(told[1]))
    assert found["window"] == width
    return found
