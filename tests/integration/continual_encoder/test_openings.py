"""How often a file is opened: by each use once, by a first drop twice."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from drops import TINY, Deliver
from openings import openings

from ccl import ContinualEncoder, FrozenEncoder
from ccl.continual_encoder import continual_encoder, searching

IMAGES = "/(week-[0-9]|fruit)/"


def _openings(encoder: ContinualEncoder, folder: Path) -> tuple[str, Counter[str]]:
    with openings(IMAGES) as names:
        (outcome,) = encoder.learn(folder, progress=False)
    return outcome.kind, Counter(names)


def test_a_file_is_opened_once_and_twice_in_a_first_drop(tmp_path: Path, deliver: Deliver) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **TINY)
    first = [f"{number:03d}.png" for number in range(30)]
    # The header first, from which the size is chosen.
    assert _openings(encoder, deliver("week-1")) == ("learned", Counter(first * 2))
    assert _openings(encoder, deliver("week-1")) == ("known", Counter(first))
    mixed = [f"{number:03d}.png" for number in range(10, 50)]  # 20 known, 20 new
    assert _openings(encoder, deliver("week-2", first=10, count=40)) == ("learned", Counter(mixed))


@pytest.mark.parametrize("resize", [None, 16])
def test_a_command_opens_each_image_once(
    shell: Callable[..., tuple[int, str, str]],
    make_frozen: Callable[..., FrozenEncoder],
    labelled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resize: int | None,
) -> None:
    monkeypatch.setattr(continual_encoder, "frozen", lambda folder, version: make_frozen(resize=resize))
    monkeypatch.setattr(continual_encoder, "frozen_start", lambda folder: make_frozen(version=0, seed=9, resize=resize))

    def opened_by(*arguments: object) -> Counter[str]:
        with openings(IMAGES) as names:
            code, _, error = shell(arguments[0], tmp_path, *arguments[1:])
        assert (code, error) == (0, "")
        return Counter(names)

    each = Counter(2 * [f"{number:02d}.png" for number in range(10)])  # of two classes
    assert opened_by("encode", labelled, "-o", tmp_path / "f.npz") == each
    assert opened_by("encode", labelled, "-o", tmp_path / "parts", "--shard", "1/1", "--part-images", 7) == each
    assert opened_by("probe", labelled) == each
    assert opened_by("predict", labelled, "-o", tmp_path / "p.csv") == each
    query = Counter({"03.png": 1})
    search = ("search", labelled / "apple" / "03.png", labelled, "-k", 4, "-o", tmp_path / "s.html")
    for longest in (1 << 18, 100):  # files that are kept as they are for the sheet, and those that are made smaller
        monkeypatch.setattr(searching, "_LONGEST_FILE", longest)
        assert opened_by(*search) == each + query
    assert (tmp_path / "s.html").read_text().count("<img") == 5
