"""The page in a real browser: no complaint in its console, every picture drawn, and nothing wider than a phone."""

import html
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ccl.report import RunRecord
from ccl.report.outcome import make_tables
from ccl.report.page import HEADINGS, write_page

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")

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


@pytest.fixture
def page(comparison: list[RunRecord], record_of: Callable[..., RunRecord], tmp_path: Path) -> Path:
    """Everything there is, with a photograph and names of more than a line."""
    memory = comparison[4].folder / "memory"
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(memory / "000000.png")
    steps = [f"a step with a long name, number {number}" for number in range(10)]
    rows = [[20.0 + step for step in range(10)] for _ in range(11)]
    long = record_of("ccl", rows, "steps=10", names=steps, folder=str(tmp_path / ("x" * 120)), device="y" * 300)
    records = [*comparison, long]
    path = tmp_path / "page" / "report.html"
    write_page(records, make_tables(records), path, "z" * 100, introduction="w" * 200)
    return path


def test_the_console_stays_silent_and_all_sections_are_there(page: Path, tmp_path: Path) -> None:
    dom, console = browse(page, tmp_path / "profile")
    assert console == []
    # One number of steps and another make no axis: three would.
    assert re.findall('<section id="([^"]*)"', dom) == [name for name in HEADINGS if name != "against"]
    # The ear works, and the page's policy holds: a script and a picture from elsewhere are refused, and that is heard.
    page.write_text(page.read_text().replace("</body>", "<script>0</script><img src=https://example.org/x></body>"))
    refused = browse(page, tmp_path / "profile")[1]
    assert len([line for line in refused if "Content Security Policy" in line]) == 2


def test_everything_is_drawn_and_fits_on_a_phone(page: Path, tmp_path: Path) -> None:
    phone = measured(page, tmp_path / "profile", width=PHONE)
    assert phone["content"] <= PHONE
    assert phone["images"] == [[True, 96], [True, 16]]
    assert len(phone["drawings"]) == page.read_text().count("<svg") > 15
    assert min(min(sides) for sides in phone["drawings"]) > 50
    dark = measured(page, tmp_path / "profile", "--blink-settings=preferredColorScheme=0", width=LAPTOP)
    assert dark["content"] <= LAPTOP
    # Paper and ink change places, in the drawings too.
    assert (phone["paper"], phone["ink"]) == ("rgb(253, 253, 252)", "rgb(29, 33, 38)")
    assert (dark["paper"], dark["ink"]) == ("rgb(21, 24, 28)", "rgb(228, 231, 234)")
