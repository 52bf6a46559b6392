"""The page in a real browser: no complaint in its console, every picture drawn, and nothing wider than a phone."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browsing import LAPTOP, PHONE, browse, evaluated, measured, needs_chromium
from PIL import Image

from ccl.report.run_page import HEADINGS, write_page
from ccl.runs.run_folder import RunRecord

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def drawn(
    compare: Callable[[Path], list[RunRecord]],
    record_of: Callable[..., RunRecord],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Everything there is, with a photograph and names of more than a line."""
    place = tmp_path_factory.mktemp("drawn")
    comparison = compare(place)
    memory = comparison[4].folder / "memory"
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(memory / "000000.png")
    steps = [f"a step with a long name, number {number}" for number in range(10)]
    rows = [[20.0 + step for step in range(10)] for _ in range(11)]
    long = record_of("ccl", rows, "steps=10", names=steps, folder=str(place / ("x" * 120)), device="y" * 300)
    path = place / "page" / "report.html"
    write_page([*comparison, long], path, "z" * 100)
    return path


@pytest.fixture
def page(drawn: Path, tmp_path: Path) -> Path:
    """A copy of the page that a test may change."""
    return Path(shutil.copy(drawn, tmp_path))


def test_the_console_stays_silent_and_all_sections_are_there(page: Path, tmp_path: Path) -> None:
    dom, console = browse(page, tmp_path / "profile")
    assert console == []
    # Three numbers of steps would make an axis, and the stream would be a section below the results; two do not.
    assert re.findall('<section id="([^"]*)"', dom) == [name for name in HEADINGS if name != "accuracy"]
    assert dom.count('class="sortable"') > 3  # the page's own script has run
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
    assert phone["drawings"][0][0] <= PHONE  # the first picture is seen whole
    assert phone["tables"] == [0] * page.read_text().count("<table")  # nothing is off the screen
    dark = measured(page, tmp_path / "profile", "--blink-settings=preferredColorScheme=0", width=LAPTOP)
    assert dark["content"] <= LAPTOP
    assert dark["drawings"][0][0] > 500
    assert len(dark["drawings"]) == len(phone["drawings"])
    # Paper and ink change places, in the drawings too.
    assert (phone["paper"], phone["ink"]) == ("rgb(253, 253, 252)", "rgb(29, 33, 38)")
    assert (dark["paper"], dark["ink"]) == ("rgb(21, 24, 28)", "rgb(228, 231, 234)")


SORTED = """
  const table = document.querySelector("#arms table");
  const [name, seeds, accuracy] = table.tHead.rows[0].cells;
  const column = place => [...table.tBodies[0].rows].map(row => row.cells[place].textContent);
  const found = [column(2)];
  for (const heading of [accuracy, accuracy, name]) {
    heading.querySelector("button").click();
    found.push(column(heading.cellIndex), heading.ariaSort);
  }
  return found;
"""


def test_a_click_sorts_a_table_and_missing_numbers_stay_last(
    record_of: Callable[..., RunRecord], tmp_path: Path
) -> None:
    values = {"finetuning": (8, 8), "ccl": (20, 24), "simple_rehearsal": (100, 90), "upper_bound": None}
    runs = [
        record_of(strategy, found and [[20], [found[seed]]], f"seed={seed}", names=["a"])
        for strategy, found in values.items()
        for seed in (0, 1)
    ]
    write_page(runs, tmp_path / "report.html", "Sorted")
    before, down, *others = evaluated(tmp_path / "report.html", tmp_path / "profile", SORTED, width=LAPTOP)
    # As numbers: as text, 11.0 would stand below 4.0.
    assert before == ["47.5 ± 3.5", "11.0 ± 1.4", "10.0", "4.0 ± 0.0", "–"]
    assert (down, others[0]) == (before, "descending")
    assert others[1:3] == [["4.0 ± 0.0", "10.0", "11.0 ± 1.4", "47.5 ± 3.5", "–"], "ascending"]
    names = [
        "CCL",
        "Finetuning (below random initialisation)",
        "Random initialisation",
        "Simple Rehearsal",
        "Upper Bound",
    ]
    assert others[3:] == [names, "ascending"]
