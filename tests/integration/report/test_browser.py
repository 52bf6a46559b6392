"""The page in a real browser: no complaint in its console, every picture drawn, and nothing wider than a phone."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browsing import LAPTOP, PHONE, browse, measured, needs_chromium
from PIL import Image

from ccl.report import RunRecord
from ccl.report.page import HEADINGS, write_page

pytestmark = needs_chromium


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
    write_page(records, path, "z" * 100)
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
