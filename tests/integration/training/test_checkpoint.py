"""Checkpoints against damage, kills, full disks and hostile folders."""

import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import struct
import sys
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from disk_calls import hear_of_disk_calls
from torch import Tensor

from ccl.atomic_files import DiskFullError
from ccl.errors import UserError
from ccl.training import checkpoint
from ccl.training.checkpoint import Checkpoint, CheckpointStore

STATE, MANIFEST = "state.safetensors", "manifest.json"
NEWEST = "00000002"


def state(seed: int) -> dict[str, Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    return {"weight": torch.randn(8, 16, generator=numbers), "count": torch.tensor(seed)}


def two(folder: Path) -> CheckpointStore:
    """A store with checkpoints 1 and 2, of `state(1)` and `state(2)`."""
    store = CheckpointStore(folder)
    for seed in (1, 2):
        store.save(state(seed), {"position": seed, "loss": 1e22, "name": "é"}, {"rows.txt": b"row\n" * seed})
    return store


def assert_is(found: Checkpoint | None, number: int) -> None:
    """It is checkpoint `number`, whole."""
    assert (found.number, found.about["position"]) == (number, number)
    assert found.files == {"rows.txt": b"row\n" * number}
    assert found.tensors.keys() == state(number).keys()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in state(number).items())


def assert_falls_back(store: CheckpointStore, culprit: Path) -> None:
    assert_is(store.newest(), 1)
    assert [path for path, _ in store.bad] == [culprit]


def same_bits(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as an attacker would: with its own hash made right again."""
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    manifest.pop("sha256", None)
    manifest["sha256"] = hashlib.sha256((json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")


def entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def recorded(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[Any]:
    """A list that grows by the argument of every call of this function from now on."""
    original, seen = getattr(owner, name), list[Any]()

    def call(given: Any) -> Any:
        seen.append(given)
        return original(given)

    monkeypatch.setattr(owner, name, call)
    return seen


def in_child(act: Callable[[], object]) -> int:
    """The exit code of a forked process that does this, negative for the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- what is saved comes back ---


def test_every_kind_of_tensor_comes_back_bit_for_bit(tmp_path: Path) -> None:
    whole = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    odd = torch.tensor([math.nan, -math.nan, math.inf, -0.0, 1e-45])
    tensors = {
        "float32": odd,
        "float64": odd.double() / 3,
        "int64": torch.tensor([-(2**63), 2**63 - 1]),
        "uint8": torch.arange(256, dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "no dimension": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3, dtype=torch.uint8),
        "empty too": torch.zeros(0, dtype=torch.long),
        "transposed": whole.t(),
        "strided": whole[::2, 1::2],
        "expanded": torch.tensor([1.5]).expand(3, 2),
        "whole": whole,
        "whole again": whole,
        "part": whole[2:],
        "parameter": torch.nn.Parameter(whole[1].clone()),
    }
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(tensors, {})
    found = store.newest()
    assert found.tensors.keys() == tensors.keys()
    assert all(same_bits(found.tensors[name], tensor.detach()) for name, tensor in tensors.items())
    storages = {tensor.untyped_storage().data_ptr() for tensor in found.tensors.values() if tensor.numel()}
    assert len(storages) == 13  # each non-empty one has its own memory
    assert all(pointer % 64 == 0 for pointer in storages)  # aligned as torch's own, so that products round alike
    found.tensors["whole"].zero_()  # and may be written to


def test_about_and_files_come_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "deep" / "checkpoints")
    about: dict[Any, Any] = {
        "step": 3,
        "nested": {"a": [1, 2.5, None, True, "é\ud800\n"]},
        "pair": (1, 2),
        10: "ten",
        9: "nine",
    }
    path = store.save({}, about, {"empty.txt": b"", "rows.jsonl": b"\x00\xff"})
    found = store.newest()
    assert (found.number, found.folder, found.tensors) == (1, path, {})
    assert found.about == {"step": 3, "nested": about["nested"], "pair": [1, 2], "10": "ten", "9": "nine"}
    assert found.files == {"empty.txt": b"", "rows.jsonl": b"\x00\xff"}
    assert sorted(os.listdir(path)) == ["empty.txt", MANIFEST, "rows.jsonl", STATE]


def test_nothing_there_is_none(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "absent")
    store.clean()
    assert (store.newest(), store.check(), store.bad) == (None, [], [])
    (tmp_path / ".saving-1-1").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "000000001").mkdir()
    assert CheckpointStore(tmp_path).newest() is None


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", ".hidden", "", "manifest.json", "state.safetensors", "x\n"])
def test_a_file_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not names"):
        CheckpointStore(tmp_path).save({}, {}, {name: b""})
    assert os.listdir(tmp_path) == []


def test_the_last_two_are_kept_and_numbers_grow(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert [store.save({}, {}).name for _ in range(4)] == [f"0000000{n}" for n in (1, 2, 3, 4)]
    assert sorted(os.listdir(tmp_path)) == ["00000003", "00000004"]
    shutil.rmtree(tmp_path / "00000003")
    (tmp_path / "00000004" / MANIFEST).write_bytes(b"")
    assert CheckpointStore(tmp_path, keep=1).save({}, {}).name == "00000005"
    assert os.listdir(tmp_path) == ["00000005"]
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointStore(tmp_path, keep=0)


def test_a_bad_checkpoint_never_counts_as_kept(tmp_path: Path) -> None:
    store = two(tmp_path)
    (tmp_path / NEWEST / STATE).write_bytes(b"")
    assert_is(store.newest(), 1)
    store.save(state(3), {})
    assert sorted(os.listdir(tmp_path)) == ["00000001", "00000002", "00000003"]
    store.save(state(4), {})  # now two good ones are newer than the bad one
    assert sorted(os.listdir(tmp_path)) == ["00000003", "00000004"]


def test_a_bad_checkpoint_removed_by_hand_is_forgotten(tmp_path: Path) -> None:
    store = two(tmp_path)
    store.keep = 1
    (tmp_path / NEWEST / STATE).write_bytes(b"")
    assert_is(store.newest(), 1)
    shutil.rmtree(tmp_path / NEWEST)
    assert store.save({}, {}).name == NEWEST
    assert os.listdir(tmp_path) == [NEWEST]


def test_check_tells_of_every_one(tmp_path: Path) -> None:
    store = two(tmp_path)
    (tmp_path / NEWEST / STATE).write_bytes(b"short")
    first, second = store.check()
    assert (first.number, first.reason, first.about["position"]) == (1, None, 1)
    assert first.num_bytes == sum(path.stat().st_size for path in first.folder.iterdir())
    assert (second.number, second.about) == (2, {})
    assert second.reason.startswith("state.safetensors: has 5 bytes instead of ")


# --- damage ---


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    store = two(tmp_path)
    draw = random.Random(0)
    sizes = {name: (tmp_path / NEWEST / name).stat().st_size for name in (MANIFEST, STATE, "rows.txt")}
    places = [(MANIFEST, place, draw.randrange(8)) for place in range(sizes[MANIFEST])]
    places += [(STATE, draw.randrange(sizes[STATE]), draw.randrange(8)) for _ in range(300)]
    places += [("rows.txt", place, bit) for place in range(sizes["rows.txt"]) for bit in range(8)]
    assert len(places) > 800
    for name, place, bit in places:
        path = tmp_path / NEWEST / name
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        path.write_bytes(flipped)
        assert_falls_back(store, path)
        path.write_bytes(whole)
    assert_is(store.newest(), 2)


def test_a_flipped_bit_that_leaves_the_meaning_is_found(tmp_path: Path) -> None:
    store = two(tmp_path)
    path = tmp_path / NEWEST / MANIFEST
    whole = path.read_bytes()
    for written, flipped in [(b"1e+22", b"1E+22"), (b"\\u00e9", b"\\u00E9")]:
        assert written in whole
        path.write_bytes(whole.replace(written, flipped))
        assert json.loads(path.read_bytes()) == json.loads(whole)
        assert_falls_back(store, path)


@pytest.mark.parametrize("name", [MANIFEST, STATE, "rows.txt"])
def test_a_cut_longer_zeroed_emptied_or_missing_file_is_found(tmp_path: Path, name: str) -> None:
    store = two(tmp_path)
    path = tmp_path / NEWEST / name
    whole = path.read_bytes()
    cuts = [whole[: len(whole) * part // 8] for part in range(8)] + [whole[:-1]]
    longer = [whole + b"\0", whole + b"\n", whole + whole]
    middle = len(whole) // 2
    zeroed = [whole[:middle] + bytes(len(whole) - middle), bytes(len(whole))]
    for damaged in [*cuts, *longer, *zeroed]:
        path.write_bytes(damaged)
        assert_falls_back(store, path)
    path.unlink()
    assert_falls_back(store, path)


def test_a_zeroed_page_is_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for seed in (1, 2):
        store.save({"weight": torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))}, {})
    path = tmp_path / NEWEST / STATE
    whole = path.read_bytes()
    for start in range(0, len(whole), 4096):
        path.write_bytes(whole[:start] + bytes(len(whole[start : start + 4096])) + whole[start + 4096 :])
        found = store.newest()
        assert found.number == 1
        assert [bad for bad, _ in store.bad] == [path]


def test_files_of_another_checkpoint_are_found(tmp_path: Path) -> None:
    store = two(tmp_path)
    shutil.copy(tmp_path / "00000001" / STATE, tmp_path / NEWEST / STATE)
    assert_falls_back(store, tmp_path / NEWEST / STATE)
    shutil.rmtree(tmp_path / NEWEST)
    shutil.copytree(tmp_path / "00000001", tmp_path / NEWEST)
    assert_falls_back(store, tmp_path / NEWEST / MANIFEST)


def test_all_bad_is_an_error_that_names_them(tmp_path: Path) -> None:
    store = two(tmp_path)
    (tmp_path / "00000001" / STATE).unlink()
    (tmp_path / NEWEST / MANIFEST).write_bytes(b"")
    with pytest.raises(UserError) as caught:
        store.newest()
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert str(tmp_path / NEWEST / MANIFEST) in lines[1]
    assert str(tmp_path / "00000001" / STATE) in lines[2]
    assert len(store.bad) == 2


def test_a_newer_format_is_refused_not_skipped(tmp_path: Path) -> None:
    store = two(tmp_path)
    rewrite(tmp_path / NEWEST, lambda manifest: manifest.update(format=2))
    with pytest.raises(UserError, match="made by a newer ccl"):
        store.newest()
    assert [finding.reason is None for finding in store.check()] == [True, False]
    rewrite(tmp_path / NEWEST, lambda manifest: manifest.update(format=0))
    assert_falls_back(store, tmp_path / NEWEST / MANIFEST)


# --- kills ---


CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


def die_at(folder: Path, last: int, is_torn: bool) -> None:
    """Save a third checkpoint and be killed before the `last`-th thing that touches the disk."""
    num_steps, sync = 0, os.fsync

    def step(handle: int | None = None) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps == last:
            if is_torn and handle is not None and (size := os.fstat(handle).st_size) and os.path.isfile(handle):
                os.truncate(f"/proc/self/fd/{handle}", size // 2)  # the kill came in the middle of the writing
            os.kill(os.getpid(), signal.SIGKILL)

    def counted_sync(fd: Any) -> None:
        step(fd)
        sync(fd)

    os.fsync = counted_sync
    sys.addaudithook(lambda event, _: step() if event in CHANGES else None)
    CheckpointStore(folder).save(state(3), {"position": 3}, {"rows.txt": b"row\n" * 3})


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_kill_between_any_two_steps_leaves_a_good_checkpoint(tmp_path: Path, is_torn: bool) -> None:
    two(tmp_path / "before")
    outcomes, had_leftovers = [], []
    for last in range(1, 100):
        folder = shutil.copytree(tmp_path / "before", tmp_path / str(last))
        code = in_child(partial(die_at, folder, last, is_torn))
        store = CheckpointStore(folder)
        found = store.newest()
        assert_is(found, found.number)
        assert store.bad == []  # nothing half-made bears a checkpoint's name
        outcomes.append(found.number)
        had_leftovers.append(any(name.startswith(".") for name in os.listdir(folder)))
        store.clean()
        names = sorted(os.listdir(folder))
        assert names in (["00000001", "00000002"], ["00000001", "00000002", "00000003"], ["00000002", "00000003"])
        assert store.save({}, {}).name == f"{found.number + 1:08d}"
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0
    assert len(outcomes) > 15
    assert outcomes == sorted(outcomes)  # the old one up to the rename, the new one from there on
    assert set(outcomes) == {2, 3}
    assert sum(had_leftovers) > 10
    assert not had_leftovers[-1]


def test_all_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that a power cut needs: files, their folder, the rename, the parent, and only then the pruning."""
    store = two(tmp_path)
    events: list[tuple[str, str, int]] = []
    hear_of_disk_calls(monkeypatch, lambda kind, path, size: events.append((kind, path.name, size)))
    path = store.save(state(3), {}, {"rows.txt": b"row\n"})
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    saving, pruning = f".saving-{os.getpid()}-3", f".pruning-{os.getpid()}-00000001"
    first = events.index(("fsync", STATE, sizes[STATE]))
    assert events[first:] == [
        *[("fsync", name, sizes[name]) for name in (STATE, "rows.txt", MANIFEST)],
        ("fsync", saving, 0),
        ("replace", "00000003", 0),
        ("fsync", tmp_path.name, 0),
        ("replace", pruning, 0),
    ]


def test_leftovers_of_a_process_with_the_same_id_are_no_obstacle(tmp_path: Path) -> None:
    store = two(tmp_path)
    leftover = tmp_path / f".saving-{os.getpid()}-3"
    leftover.mkdir()
    (leftover / STATE).write_bytes(b"half")
    (leftover / "other").write_bytes(b"half")
    path = store.save(state(3), {"position": 3}, {"rows.txt": b"row\n" * 3})
    assert sorted(os.listdir(path)) == [MANIFEST, "rows.txt", STATE]
    assert_is(store.newest(), 3)


def test_cleaning_removes_leftovers_only(tmp_path: Path) -> None:
    store = two(tmp_path / "run")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_bytes(b"")
    (tmp_path / "run" / ".saving-1-9").symlink_to(outside)
    (tmp_path / "run" / ".pruning-1-00000009").mkdir()
    (tmp_path / "run" / "notes.txt").write_bytes(b"")
    store.clean()
    assert sorted(os.listdir(tmp_path / "run")) == ["00000001", "00000002", "notes.txt"]
    assert (outside / "canary").exists()


# --- full disks ---


def test_too_little_room_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = two(tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 1234, 1234))
    monkeypatch.setattr(checkpoint, "write_folder", lambda *_: pytest.fail("something was written"))
    with pytest.raises(DiskFullError) as caught:
        store.save({"big": torch.zeros(5000)}, {})
    error = caught.value
    assert isinstance(error, UserError)
    assert 20_000 + checkpoint.MARGIN < error.needed < 22_000 + checkpoint.MARGIN
    assert error.free == 1234
    assert f"{error.needed} bytes needed, 1234 free" in str(error)
    assert "\n" not in str(error)
    assert sorted(os.listdir(tmp_path)) == ["00000001", "00000002"]
    assert_is(store.newest(), 2)


def test_room_is_needed_with_the_margin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = two(tmp_path).save(state(3), {})
    needed = sum(file.stat().st_size for file in path.iterdir()) + checkpoint.MARGIN
    usage = namedtuple("usage", "total used free")
    created = json.loads((path / MANIFEST).read_text())["created"]
    monkeypatch.setattr("time.time", lambda: created)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, needed - 1))
    with pytest.raises(DiskFullError):
        CheckpointStore(tmp_path).save(state(3), {})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, needed))
    assert CheckpointStore(tmp_path).save(state(3), {}).name == "00000004"


@pytest.mark.parametrize("limit", [0, 100, 50_000])
def test_a_file_that_may_not_grow_leaves_the_previous_one_good(tmp_path: Path, limit: int) -> None:
    store = two(tmp_path / "run")
    told, write_told = os.pipe()

    def save() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            store.save({"big": torch.zeros(20_000)}, {})
        except DiskFullError as error:
            os.write(write_told, str(error).encode())

    assert in_child(save) == 0
    os.close(write_told)
    message = os.read(told, 4096).decode()
    os.close(told)
    assert "File too large" in message
    assert str(tmp_path / "run" / "00000003") in message
    numbers = [int(word) for word in message.replace(":", " ").split() if word.isdigit()]
    assert numbers[0] > 80_000
    assert "bytes needed" in message
    assert "free" in message
    assert "\n" not in message
    assert sorted(os.listdir(tmp_path / "run")) == ["00000001", "00000002"]
    assert_is(store.newest(), 2)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), PermissionError(13, "no"), KeyboardInterrupt()]
)
def test_whatever_ends_a_save_nothing_is_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    store = two(tmp_path)
    sync = os.fsync

    def failing(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(MANIFEST):
            raise error
        sync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    is_full = isinstance(error, OSError) and error.errno == 28
    with pytest.raises(DiskFullError if is_full else type(error)):
        store.save(state(3), {})
    assert sorted(os.listdir(tmp_path)) == ["00000001", "00000002"]
    assert_is(store.newest(), 2)


# --- hostile folders ---


@pytest.mark.parametrize("form", ["../{}", "{root}/{}", "../../{}", "./../{}", "../00000001/state.safetensors"])
def test_a_manifest_never_reads_outside_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    store = two(tmp_path / "run")
    secret = b"secret"
    for place in (tmp_path, tmp_path / "run"):
        (place / "secret").write_bytes(secret)
    name = form.format("secret", root=tmp_path)
    content = (tmp_path / "run" / NEWEST / name).read_bytes()
    rewrite(tmp_path / "run" / NEWEST, lambda manifest: manifest["files"].update({name: entry(content)}))
    reads = recorded(monkeypatch, Path, "read_bytes")
    assert_falls_back(store, tmp_path / "run" / NEWEST / MANIFEST)
    assert {path.parent.name for path in reads} == {"00000001", NEWEST}
    assert all(".." not in path.parts for path in reads)


@pytest.mark.parametrize("name", [MANIFEST, STATE, "rows.txt"])
def test_links_and_pipes_are_not_followed(tmp_path: Path, name: str) -> None:
    store = two(tmp_path / "run")
    path = tmp_path / "run" / NEWEST / name
    path.rename(tmp_path / name)
    path.symlink_to(tmp_path / name)
    assert_falls_back(store, path)
    path.unlink()
    os.mkfifo(path)
    assert_falls_back(store, path)  # and doesn't wait for a writer
    path.unlink()
    path.mkdir()
    assert_falls_back(store, path)


def test_a_link_or_a_file_in_place_of_the_folder_is_bad(tmp_path: Path) -> None:
    store = two(tmp_path / "run")
    path = tmp_path / "run" / NEWEST
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert_falls_back(store, path)
    path.unlink()
    path.write_bytes(b"")
    assert_falls_back(store, path)
    assert [finding.reason for finding in store.check()] == [None, f"{NEWEST}: not a folder"]


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"about":' * 100_000,
        b'{"sha256": "' + b"[" * 900 + b"]" * 900 + b'"}',
        b'{"sha256": 1, "about": ' + b"[" * 900 + b"]" * 900 + b"}",
        b"9" * 10_000,
        b"[]",
        b"{}",
        b"null",
        b'"sha256"',
        b"\xff\xfe\x00",
        b"\x80\x04.",
        b"NaN",
    ],
)
def test_any_manifest_is_a_skip_not_a_crash(tmp_path: Path, content: bytes) -> None:
    store = two(tmp_path)
    (tmp_path / NEWEST / MANIFEST).write_bytes(content)
    assert_falls_back(store, tmp_path / NEWEST / MANIFEST)


@pytest.mark.parametrize(
    "change",
    [
        *({"files": wrong} for wrong in ([], {}, {STATE: None}, {STATE: {}}, {STATE: {"bytes": 5}})),
        *({"format": wrong} for wrong in ("1", None, [])),
        *({"number": wrong} for wrong in (1, None)),
        {"about": []},
        *("format", "number", "about", "files"),
    ],
    ids=str,
)
def test_a_well_hashed_manifest_of_wrong_types_or_without_a_field_is_a_skip(
    tmp_path: Path, change: dict[str, Any] | str
) -> None:
    store = two(tmp_path)
    change_it = (lambda it: it.pop(change)) if isinstance(change, str) else (lambda it: it.update(change))
    rewrite(tmp_path / NEWEST, change_it)
    assert_falls_back(store, tmp_path / NEWEST / MANIFEST)


@pytest.mark.parametrize("size", [None, -1, 10**30, "5", 0.5, [], {}])
def test_a_well_hashed_manifest_of_wrong_sizes_is_a_skip(tmp_path: Path, size: object) -> None:
    store = two(tmp_path)
    rewrite(tmp_path / NEWEST, lambda manifest: manifest["files"][STATE].update(bytes=size))
    assert_falls_back(store, tmp_path / NEWEST / STATE)


def header(length: int, text: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", length) + text + data


def tensor(**about: Any) -> bytes:
    text = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **about}}).encode()
    return header(len(text), text, b"\0\0\0\0")


HOSTILE_STATES = [
    b"",
    b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    header(2**64 - 1, b"{}"),
    header(2**40, b"{}"),
    header(0, b""),
    header(9, b'{"x":1}  '),
    header(100_000, b'{"x":' * 20_000),
    tensor(shape=[2**62, 2**62]),
    tensor(shape=[-1]),
    tensor(shape=[2**63, 0], data_offsets=[0, 0]),
    tensor(data_offsets=[0, 2**62]),
    tensor(data_offsets=[4, 0]),
    tensor(dtype="PICKLE"),
    tensor(dtype="F4", shape=[8]),
]


@pytest.mark.parametrize("number", range(len(HOSTILE_STATES)))
def test_a_hostile_state_is_never_parsed_or_refused_by_the_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store, content = two(tmp_path), HOSTILE_STATES[number]
    path = tmp_path / NEWEST / STATE
    path.write_bytes(content)
    parsed = recorded(monkeypatch, safetensors.torch, "load")
    assert_falls_back(store, path)
    assert content not in parsed
    rewrite(tmp_path / NEWEST, lambda manifest: manifest["files"].update({STATE: entry(content)}))
    assert_falls_back(store, path)
    assert content in parsed
