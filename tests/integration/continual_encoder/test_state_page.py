"""The page of a state: what stands on it, names that would break out, and a real browser."""

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import LAPTOP, PHONE, browse, measured, needs_chromium
from drops import TINY, Deliver

from ccl import ContinualEncoder
from ccl.continual_encoder.encoder_folder import EncoderFolder
from ccl.continual_encoder.page import write_state_page

QUIET: dict[str, Any] = {"progress": False}


@pytest.fixture
def page(tmp_path: Path, deliver: Deliver) -> Path:
    """Two drops, one with a hostile name, a refused one and a rollback."""
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    encoder.learn(deliver("week-1"), name="<script>alert(1)</script>", **QUIET)
    encoder.learn(deliver("week-2", "textures"), name="w" * 90, **QUIET)
    encoder.learn(deliver("week-3", "textures", 40, 20), max_drop=-101.0, **QUIET)  # nothing can satisfy it
    encoder.rollback(1)
    encoder.rollback(2)
    return encoder.folder / "report.html"


def test_the_page_tells_the_history_and_escapes_names(page: Path) -> None:
    text = page.read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert re.findall(r'<section id="([^"]*)"', text) == ["history", "health", "memory", "events", "settings"]
    assert "week-3: agreement of remembered images with their groups" in text
    assert "from version 1 to version 2" in text
    assert "(start " in text  # agreement, beside its value at the start
    assert text.count("<summary>") == 3  # the images of two drops, and the settings
    assert not re.search(r'(src|href)="(?!data:|#)', text)


def test_a_state_that_has_learned_nothing_has_no_page(tmp_path: Path) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    write_state_page(EncoderFolder(encoder.folder))
    assert not (encoder.folder / "report.html").exists()


@needs_chromium
def test_in_a_browser_it_is_silent_and_fits_on_a_phone(page: Path, tmp_path: Path) -> None:
    assert browse(page, tmp_path / "profile")[1] == []
    phone = measured(page, tmp_path / "profile", width=PHONE)
    assert phone["content"] <= PHONE
    assert all(complete and width == 16 for complete, width in phone["images"])
    assert len(phone["drawings"]) == 1
    assert measured(page, tmp_path / "profile", width=LAPTOP)["content"] <= LAPTOP
