"""The page of a state: what stands on it, names that would break out, and a real browser."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browsing import LAPTOP, PHONE, browse, measured, needs_chromium
from drops import TINY, deliver_to

from ccl import ContinualEncoder
from ccl.continual_encoder.folder import EncoderFolder, Ledger
from ccl.continual_encoder.folder_page import ACCURACY, MEASURES, curve_over_drops, history, write_page

QUIET: dict[str, Any] = {"progress": False}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, pictures: dict[str, list[bytes]]) -> Path:
    """Two drops, one with a hostile name, a refused one and a rollback."""
    place = tmp_path_factory.mktemp("page")
    deliver = partial(deliver_to, place, pictures)
    encoder = ContinualEncoder.create(place / "state", **TINY)
    encoder.learn(deliver("week-1"), name="<script>alert(1)</script>", **QUIET)
    encoder.learn(deliver("week-2", "textures"), name="w" * 90, **QUIET)
    encoder.learn(deliver("week-3", "textures", 40, 20), max_drop=-101.0, **QUIET)  # nothing can satisfy it
    encoder.rollback(1)
    encoder.rollback(2)
    return encoder.folder / "report.html"


def test_the_page_tells_the_history_and_escapes_names(page: Path) -> None:
    text = page.read_text()
    assert text.count("<script") == 1  # the page's own
    assert "&lt;script&gt;alert(1)" in text
    assert re.findall(r'<section id="([^"]*)"', text) == ["health", "history", "memory", "events", "settings"]
    assert text.index('class="verdict"') < text.index("<svg") < text.index("<table")
    assert "week-3: agreement of remembered images with their groups" in text
    assert "from version 1 to version 2" in text
    assert "(start " in text  # agreement, beside its value at the start
    assert text.count("<summary>") == 3  # the images of two drops, and the settings
    assert not re.search(r'(src|href)="(?!data:|#)', text)


def step(number: int, agreement: float, accuracy: float | None = None) -> dict[str, Any]:
    """A drop as a version remembers it."""
    labelled = {
        "linear": accuracy,
        "linear_before": 34.0,
        "knn": 30.0,
        "num_test": 400,
        "beside": {"start": {"linear": 3.0}},
    }
    return {
        "name": f"week-{number}",
        "version": number,
        "date": "2026-11-17 18:27",
        "num_images": 12000,
        "num_known": 0,
        "num_repeated": 0,
        "num_remembered": 2000,
        "seconds": 641.0,
        "health": {"group_agreement": [agreement, agreement], "uniformity": [-1.0, -2.0]},
        "accuracy": None if accuracy is None else labelled,
    }


def test_an_accuracy_stands_with_its_standard_error_and_not_under_health() -> None:
    """36 % of 400 images: √(36 · 64 / 400) = 2.4."""
    steps = [step(1, 34.0, 34.0), step(2, 36.0, 36.0)]
    axes = curve_over_drops(steps, ACCURACY).axes[0]
    (bars,) = axes.containers[0].lines[2]
    assert bars.get_segments()[1][:, 1] == pytest.approx([33.6, 38.4])
    table = history(steps, Ledger(current=2, latest=2), [1, 2])
    row = dict(zip(table.columns, table.rows[1], strict=True))
    assert (row["version"], row[ACCURACY], row["training"]) == ("2, current", "34.0 → 36.0 ± 2.4", "641 s")
    assert ACCURACY not in MEASURES  # which are drawn under "measured without labels"
    assert ACCURACY not in history([step(1, 34.0)], Ledger(current=1, latest=1), [1]).columns


def test_a_state_that_has_learned_nothing_has_no_page(tmp_path: Path) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    write_page(EncoderFolder(encoder.folder))
    assert not (encoder.folder / "report.html").exists()


@needs_chromium
def test_in_a_browser_it_is_silent_and_fits_on_a_phone(page: Path, tmp_path: Path) -> None:
    assert browse(page, tmp_path / "profile")[1] == []
    phone = measured(page, tmp_path / "profile", width=PHONE)
    assert phone["content"] <= PHONE
    assert all(complete and width == 16 for complete, width in phone["images"])
    assert len(phone["drawings"]) == page.read_text().count("<svg") > 4
    assert max(width for width, _ in phone["drawings"]) <= PHONE
    assert phone["tables"] == [0, 0]
    laptop = measured(page, tmp_path / "profile", width=LAPTOP)
    assert laptop["content"] <= LAPTOP
    assert laptop["tables"][0] == 0  # the last column of the history is whole
