"""Killed at every call that changes a file: all verifies, and the same command again ends in the same bits."""

import io
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import crash_test
import drops
import pytest
from kill_points import listing, renewed, run_forked
from processes import SMALL, GridRun
from safetensors import safe_open

from ccl import ContinualEncoder
from ccl.atomic_files import remove, write_file
from ccl.cli import main
from ccl.continual_encoder import judge
from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.folder_page import write_page
from ccl.data import load_dataset
from ccl.report import svg_figures
from ccl.runs import jobs

SETTINGS: dict[str, Any] = {**drops.TINY, "epochs": 1}
Work = Callable[[Path], object]  # given a folder in which everything of a case lies


def ccl(*words: object) -> tuple[int, str]:
    """`ccl …` in this process: exit code, and all that it prints."""
    told, before = io.StringIO(), sys.argv
    sys.argv = ["ccl", *map(str, words)]
    try:
        with redirect_stdout(told), redirect_stderr(told):
            main()
    except SystemExit as leaving:
        return (leaving.code if isinstance(leaving.code, int) else 0), told.getvalue()
    finally:
        sys.argv = before
    return 0, told.getvalue()


def images(name: str) -> Any:
    return load_dataset(name, images_per_class=2, resize=16).train.images


def learn(place: Path, name: str, **options: Any) -> None:
    ContinualEncoder(place / "encoder").learn(images(name), progress=False, settings=SETTINGS, name=name, **options)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | None]:
    """What a case begins with."""
    two = tmp_path_factory.mktemp("two") / "place"
    learn(two, "symbols")
    one = renewed(two, tmp_path_factory.mktemp("one") / "place")
    learn(two, "textures")
    source = load_dataset("digits", images_per_class=6, resize=16).train
    for number in range(60):
        (two / "photos").mkdir(exist_ok=True)
        (two / "photos" / f"{number:02d}.png").write_bytes(b"<html>" if number == 5 else source.encoded(number))
    for number in range(6):
        for name in "ab":
            (two / "labelled" / name).mkdir(parents=True, exist_ok=True)
            (two / "labelled" / name / f"{number}.png").write_bytes(source.encoded(number + 6 * (name == "b")))
    candidate = renewed(two, tmp_path_factory.mktemp("candidate") / "place")
    refused(candidate)
    damaged = renewed(two, tmp_path_factory.mktemp("damaged") / "place")
    for name in ("ledger.json", "settings.yaml", "report.html"):
        path = damaged / "encoder" / name
        path.write_bytes(path.read_bytes()[:-30])
    return {"nothing": None, "one": one, "two": two, "refused": candidate, "damaged": damaged}


def encode(place: Path, *words: object) -> None:
    code, told = ccl("encode", place / "encoder", place / "photos", *words)
    assert code == 0, told


def refused(place: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "faults", lambda *_: ["collapsed: planted"])
        learn(place, "digits")


def promote(place: Path) -> None:
    if ContinualEncoder.open(place / "encoder").version != 3:
        assert ccl("promote", place / "encoder")[0] == 0
    write_page(EncoderFolder(place / "encoder"))  # all that may be missing where it is the current one already


def roll_back(place: Path) -> None:
    if (encoder := ContinualEncoder.open(place / "encoder")).version != 1:
        encoder.rollback(1)
    write_page(EncoderFolder(place / "encoder"))


CASES: dict[str, tuple[str, Work]] = {
    "a first drop": ("nothing", lambda place: learn(place, "symbols")),
    "a second drop, and the first is pruned": ("one", lambda place: learn(place, "textures", keep_versions=1)),
    "a drop in place of one under way": ("under way", lambda place: learn(place, "textures", restart=True)),
    "a drop that is refused": ("two", lambda place: refused(place)),
    "promote": ("refused", lambda place: promote(place)),
    "rollback": ("two", lambda place: roll_back(place)),
    "repair": ("damaged", lambda place: ccl("verify", place / "encoder", "--repair")),
    "pin": ("two", lambda place: ContinualEncoder.open(place / "encoder").pin(1)),
    "probe": ("two", lambda place: ContinualEncoder.open(place / "encoder").probe(place / "labelled")),
    "encode": ("two", lambda place: encode(place, "-o", place / "out" / "f.npz")),
    "encode, as text": ("two", lambda place: encode(place, "-o", place / "f.csv")),
    "encode, in parts": ("two", lambda place: encode(place, "-o", place / "f", "--shard", "1/1", "--part-images", 20)),
    "export": ("two", lambda place: ContinualEncoder.open(place / "encoder").export(place / "f.safetensors")),
    "export, as a folder": ("two", lambda place: ContinualEncoder.open(place / "encoder").export(place / "hub")),
}


def outcome(place: Path, state: str) -> dict[str, object]:
    """All that a command leaves, but for times."""
    # A kill just before the first version would be pruned leaves it until the next drop.
    left = re.compile("version 1:|versions/00000001" if state == "one" else "never")
    found: dict[str, object] = {"files": [name for name in listing(place) if not left.search(name)]}
    found |= {name: told for name, told in drops.fingerprint(place / "encoder").items() if not left.search(name)}
    for path in place.rglob("*"):
        if path.is_file() and not {"encoder", "photos", "labelled"} & {part.name for part in path.parents}:
            found[path.name] = path.read_bytes()
        if path.suffix == ".safetensors" and "versions" not in path.parts:
            with safe_open(path, framework="np") as file:  # its description is in any order
                tensors = {name: file.get_tensor(name).tobytes() for name in sorted(file.keys())}
                found[path.name] = sorted(file.metadata().items()), tensors
    return found


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing and drawing take most of a small drop's time."""
    monkeypatch.setattr(svg_figures, "to_svg", lambda figure, key="": "<svg></svg>")
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def test_every_call_is_counted_and_a_file_that_is_synced_is_torn(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "elsewhere").mkdir()

    def work() -> None:
        write_file(place / "a" / "b.txt", "1234567890")  # a folder; opened, synced, moved
        (tmp_path / "elsewhere" / "c.txt").write_text("not counted")
        remove(place / "a")  # a file and its folder

    assert (run_forked(work, place).count, listing(place)) == (6, [])
    seen = []
    for number in range(1, 7):
        renewed(None, place).mkdir()
        assert run_forked(work, place, number).killed
        seen.append([path.read_text() for path in place.rglob("*.txt")])
    assert seen == [[], [], ["12345"], ["1234567890"], ["1234567890"], []]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_killed_at_every_call_that_changes_a_file(states: dict[str, Path | None], tmp_path: Path, name: str) -> None:
    place, (state, work) = tmp_path / "place", CASES[name]
    if state == "under way":
        states[state] = under_way(states["one"], place)
    renewed(states[state], place).mkdir(exist_ok=True)
    work(place)
    expected = outcome(place, state)
    assert all(not re.search(r"\.part|\.saving|\.pruning", file) for file in expected["files"])  # type: ignore[attr-defined]
    number, faults = 0, list[str]()
    while True:
        number += 1
        renewed(states[state], place).mkdir(exist_ok=True)
        ended = run_forked(lambda: work(place), place, number)
        if not ended.killed:
            assert ended.code == 0, ended.error
            break
        faults += [f"{number}: {ended.last}: {fault}" for fault in seen_after_a_kill(place, state, work, expected)]
    print(f"{name}: killed at {number - 1} calls")
    assert not faults, "\n".join(faults)


RUN = [*SMALL, "--set=epochs=1", "--set=probe.after=last"]
RUNS: dict[str, Work] = {
    "run": lambda place: check(*ccl("run", "demo", *RUN, "--out", place / "run")),
    "compare": lambda place: check(
        *ccl("compare", "demo", *RUN, "--strategies", "finetuning,ccl", "--jobs", 1, "--out", place / "grid")
    ),
}


def check(code: int, told: str) -> None:
    assert code == 0, told


def bits_of_runs(place: Path) -> dict[str, object]:
    # Which checkpoints are left depends on the clock.
    found: dict[str, object] = {"files": [name for name in listing(place) if "checkpoints/0" not in name]}
    for status in sorted(place.rglob("status.json")):
        told = crash_test.fingerprint(status.parent)
        found |= {f"{status.parent.name} {name}": value for name, value in told.items()}
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "drawn"), [("run", 60), ("compare", 12)])
def test_runs_killed_at_drawn_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, drawn: int) -> None:
    place, work = tmp_path / "place", RUNS[name]
    monkeypatch.setattr(jobs, "LocalProcess", GridRun)
    renewed(None, place).mkdir()
    work(place)
    expected = bits_of_runs(place)
    renewed(None, place).mkdir()
    count = run_forked(lambda: work(place), place).count
    faults, killed = list[str](), 0
    for number in sorted(random.Random(0).sample(range(1, count), drawn)):
        renewed(None, place).mkdir()
        ended = run_forked(lambda: work(place), place, number)
        killed += ended.killed
        for status in place.rglob("status.json"):
            if ccl("verify", status.parent)[0] == 1 and ccl("verify", status.parent, "--repair")[0]:
                faults.append(f"{number}: {ended.last}: verify: {ccl('verify', status.parent)[1]}")
        try:
            work(place)
        except Exception as error:
            faults.append(f"{number}: {ended.last}: again: {error}")
            continue
        found = bits_of_runs(place)
        wrong = {name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)}
        if "files" in wrong:
            wrong |= set(expected["files"]) ^ set(found["files"])  # type: ignore[call-overload]
        faults += [f"{number}: {ended.last}: {sorted(wrong)[:9]}"] if wrong else []
    print(f"{name}: killed at {killed} of {count} calls")
    assert killed >= drawn - 2
    assert not faults, "\n".join(faults)


def seen_after_a_kill(place: Path, state: str, work: Work, expected: dict[str, object]) -> Iterator[str]:
    folder = place / "encoder"
    if EncoderFolder(folder).exists():
        code, told = ccl("verify", folder)
        if code and ccl("verify", folder, "--repair")[0]:
            yield f"verify: {told}"
    try:
        work(place)
        found = outcome(place, state)
        for name in sorted(expected.keys() | found.keys()):
            if name == "files" and expected[name] != found[name]:
                yield f"files {sorted(set(expected[name]) ^ set(found[name]))}"  # type: ignore[call-overload]
            elif expected.get(name) != found.get(name):
                yield f"{name} differs"
    except Exception as error:
        yield f"again: {type(error).__name__}: {error}"


def under_way(source: Path | None, place: Path) -> Path:
    """A drop that was killed in its middle."""
    renewed(source, place)
    ended = run_forked(lambda: learn(place, "digits"), place, 60)
    assert ended.killed
    assert (place / "encoder" / "learning" / "checkpoints").is_dir()
    return renewed(place, place.with_name("under-way"))
