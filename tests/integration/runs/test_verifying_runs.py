"""`ccl verify` on a run folder: each file is good, mendable or lost; what is mended ends as if nothing had been."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from breaking import assert_same, quiet, run_broken_once
from tiny import tiny_settings

from ccl import read_run, run
from ccl.errors import UserError
from ccl.runs.verifying import check_run

SETTINGS = tiny_settings("strategy=ccl", "checkpoint.minutes=1e-9")
FILES = ("settings.yaml", "protocol.json", "metrics.jsonl", "accuracy.csv", "status.json")
AT_THE_END = ("encoder.safetensors", "embeddings.npz", "memory/index.csv", "memory/000001.png")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(SETTINGS, folder, quiet())
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def faults(folder: Path, repair: bool = False) -> dict[str, str]:
    """What is not good, and what is said of it."""
    found = {one.what: f"{one.state}: {one.about}" for one in check_run(folder, repair) if one.state != "good"}
    return {what: said for what, said in found.items() if not said.startswith("unknown")}


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.name != ".lock"}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


HOW: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-64]),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": Path.unlink,
}


def test_a_whole_run_is_good_and_what_ccl_never_wrote_is_no_fault(copy: Path) -> None:
    (copy / "notes.txt").touch()
    found = {one.what: one.state for one in check_run(copy)}
    assert found.pop("notes.txt") == "unknown"
    assert set(found) >= {*FILES, *AT_THE_END}
    assert set(found.values()) == {"good"}
    with pytest.raises(UserError, match="neither a run folder nor an encoder folder"):
        list(check_run(copy.parent))


@pytest.mark.parametrize("name", [*FILES, *AT_THE_END])
@pytest.mark.parametrize("how", HOW)
def test_what_is_damaged_is_found_and_mended_from_the_checkpoint(copy: Path, whole: Path, name: str, how: str) -> None:
    HOW[how](copy / name)
    before = files(copy)
    assert faults(copy)[name].startswith("mendable: ")
    assert files(copy) == before, "nothing is written without --repair"
    assert all(said.startswith("mended: ") for said in faults(copy, repair=True).values())
    assert faults(copy) == {}
    assert files(copy) >= before
    is_written_anew = name in AT_THE_END or name == "status.json"
    assert read_run(copy).status["state"] == ("stopped" if is_written_anew else "complete")
    run(SETTINGS, copy, quiet())
    assert_same(whole, copy)
    for path in files(whole):
        is_own = path.is_dir() or path.name in ("status.json", "protocol.json")
        assert is_own or (copy / path.relative_to(whole)).read_bytes() == path.read_bytes()
    assert {one.state for one in check_run(copy)} == {"good"}


def test_rows_of_a_killed_run_are_those_of_its_checkpoint(tmp_path: Path) -> None:
    run_broken_once(SETTINGS, tmp_path)
    (tmp_path / "status.json").write_text('{"state": "running"}')
    assert faults(tmp_path) == {}
    flip(tmp_path / "metrics.jsonl")
    assert "not the rows of the newest checkpoint" in faults(tmp_path)["metrics.jsonl"]
    assert faults(tmp_path, repair=True)["metrics.jsonl"].startswith("mended")
    assert faults(tmp_path) == {}


@pytest.mark.parametrize("name", ["metrics.jsonl", "encoder.safetensors", "status.json", "manifest.json"])
def test_what_may_not_be_read_is_not_called_damaged_and_not_mended(
    copy: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real, before = Path.read_bytes, files(copy)

    def refuse(self: Path) -> bytes:  # tests may run as root
        if self.name == name:
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr("ccl.runs.verifying.write_file", lambda *_: pytest.fail("something was written"))
    found = faults(copy, repair=True)
    assert found
    assert all(said.startswith("lost: ") and "can't" in said and "Permission denied" in said for said in found.values())
    assert files(copy) == before


def test_a_bad_checkpoint_beside_a_good_one_is_skipped_and_stays(copy: Path) -> None:
    first, last = sorted((copy / "checkpoints").iterdir())
    flip(last / "state.safetensors")
    said = faults(copy, repair=True)[f"checkpoint {last.name}"]
    assert said.startswith("lost: state.safetensors")
    assert said.endswith(f"skipped, as {first.name} is good")
    assert last.is_dir()


def test_a_checkpoint_of_another_run_is_named_and_not_used(copy: Path, tmp_path: Path) -> None:
    run(tiny_settings("strategy=ccl", "seed=1"), tmp_path / "other", quiet())
    shutil.rmtree(copy / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", copy / "checkpoints")
    assert all("of another run (seed: 1 instead of 0)" in said for said in faults(copy).values())
    flip(copy / "encoder.safetensors")
    assert faults(copy, repair=True)["encoder.safetensors"] == "lost: not as the run left it"


def test_without_a_checkpoint_it_is_lost(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    assert faults(copy) == {}
    for name in ("accuracy.csv", "status.json"):
        flip(copy / name)
        assert faults(copy, repair=True)[name].startswith("lost: ")


def test_a_run_of_before_is_good_as_it_is(tmp_path: Path) -> None:
    old = Path(__file__).parents[2] / "reliability" / "run_of_format_1"
    folder = Path(shutil.copytree(old, tmp_path / "run"))
    assert faults(folder) == {}
    HOW["cut"](folder / "metrics.jsonl")
    assert "its end is missing" in faults(folder)["metrics.jsonl"]


def test_a_run_killed_before_it_began_has_no_fault(copy: Path) -> None:
    for path in copy.iterdir():
        if path.name not in ("settings.yaml", "protocol.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert faults(copy) == {}
    (copy / "accuracy.csv").touch()
    assert faults(copy)["status.json"] == "lost: it is missing"
