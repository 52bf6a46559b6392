"""Any file of a folder damaged in any way is found, or makes no difference; and nothing is deleted for it."""

import functools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from damage import MAKERS, SMALL, Damaged, copied, line_of, unreadable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import tiny_settings

from ccl import UserError, load_settings
from ccl.loading import dump_settings
from ccl.sealed_json import seal
from ccl.settings_files import parse_yaml

Make = Callable[[str], Path]
KINDS = [pytest.param(kind, marks=pytest.mark.slow) if kind != "stopped" else kind for kind in MAKERS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    place = tmp_path_factory.mktemp("made")
    return functools.cache(lambda kind: MAKERS[kind](place / kind))


@pytest.fixture(params=KINDS)
def damaged(request: pytest.FixtureRequest, made: Make, tmp_path: Path) -> Damaged:
    return copied(made(request.param), tmp_path)


# Files of which any use reads little or nothing: each flip goes through all uses, so that a draw must do.
UNREAD = ("settings.yaml", "learning/", ".confusion.png")
DRAWN = 10_000


def bits_of(damaged: Damaged, name: str, share: float) -> list[int]:
    """Every bit of a small file, and of the large ones a draw; `share` of them."""
    size, draw = len(damaged.whole[name]), random.Random(name)
    num_large = sum(len(content) >= SMALL for content in damaged.whole.values())
    many = 8 * size if size < SMALL else DRAWN // num_large + 1
    if damaged.reader(name) is None or name == "settings.yaml":
        many = 150 if damaged.is_encoder else 500
    return sorted(draw.sample(range(8 * size), min(8 * size, max(1, int(share * many)))))


def test_some_bits(damaged: Damaged) -> None:
    for name in damaged.names:
        damaged.flip(name, bits_of(damaged, name, 0.002), checked=1)
    print(damaged.folder.name, damaged.counts)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(4))
def test_every_bit(damaged: Damaged, shard: int) -> None:
    for name in damaged.names[shard::4]:
        damaged.flip(name, bits_of(damaged, name, 1.0))
    print(damaged.folder.name, shard, damaged.counts)


@pytest.mark.slow
def test_cut_files(damaged: Damaged) -> None:
    for name in damaged.kinds:
        content, read = damaged.whole[name], damaged.reader(name)
        for size in range(0, len(content), 64):
            with damaged.replaced(name, content[:size]):
                if damaged.is_silent(read):
                    damaged.check(f"{name} cut to {size} bytes")
                else:
                    damaged.found += 1
    assert damaged.files() == damaged.whole
    print(damaged.folder.name, damaged.counts)


@pytest.mark.slow
def test_empty_and_missing_files(damaged: Damaged) -> None:
    for name in damaged.names:
        for content in (b"", None):
            with damaged.replaced(name, content):
                damaged.check(f"{name} {'missing' if content is None else 'empty'}")
    print(damaged.folder.name, damaged.counts)


@pytest.mark.slow
def test_files_of_another_folder(damaged: Damaged, tmp_path: Path) -> None:
    other = Damaged(MAKERS[damaged.folder.name](tmp_path / "other" / damaged.folder.name, seed=1), seed=1)
    for name in damaged.names:
        theirs = other.whole.get(name, damaged.whole[name])
        if theirs != damaged.whole[name]:
            with damaged.replaced(name, theirs):
                damaged.check(f"{name} of another folder")
    print(damaged.folder.name, damaged.counts)


@pytest.mark.slow
def test_unreadable_files_are_not_called_damaged(damaged: Damaged) -> None:
    for name in damaged.names:
        if "classifiers" in name or name.endswith(".png"):
            continue  # opened by other means than Python's
        damaged.tried += 1
        with unreadable(damaged.folder / name):
            faults, outputs = damaged.faults(), damaged.uses()
        told = [*faults, *(str(value) for value in outputs.values() if isinstance(value, UserError))]
        assert all(re.search("can't (be )?read", line) for line in told), f"{name}: {told}"
        assert not re.search("damaged|ccl rollback|--repair", " ".join(told)), f"{name}: {told}"
        assert told or outputs == damaged.outputs, name
        damaged.found += bool(told)
        damaged.harmless += not told
        assert damaged.files() == damaged.whole
    print(damaged.folder.name, damaged.counts)


# Values of wrong types and sizes

FUZZ: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [*HealthCheck],
}


PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(max_size=20), st.just("x" * 10_000)
)
DEEP: Any = json.loads("[" * 600 + "]" * 600)
VALUES: st.SearchStrategy[Any] = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
) | st.just(DEEP)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value stands in nested ones."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def with_value(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = value.copy()
    copy[place[0]] = with_value(value[place[0]], place[1:], new)
    return copy


def texts(name: str, content: bytes) -> st.SearchStrategy[bytes]:
    """Contents of a file with another value somewhere; where it was sealed, sealed again or not."""
    whole = (
        yaml.safe_load(content)
        if name.endswith(".yaml")
        else json.loads(content.splitlines()[0] if name.endswith("l") else content)
    )
    body = {key: value for key, value in whole.items() if key != "sha256"}

    def made(place: tuple[Any, ...], new: Any, is_sealed: bool) -> bytes:
        changed = with_value(body, place, new)
        if name.endswith(".yaml"):
            return yaml.safe_dump(changed, allow_unicode=True).encode("utf-8", "replace")
        if is_sealed and isinstance(changed, dict):
            return seal(changed)
        return json.dumps(changed).encode() + b"\n"

    return st.builds(made, st.sampled_from(places(body)), VALUES, st.booleans())


def mistype(damaged: Damaged, name: str) -> None:
    @settings(max_examples=20, **FUZZ)
    @given(texts(name, damaged.whole[name]))
    def attempt(content: bytes) -> None:
        with damaged.replaced(name, content):
            before = damaged.files()
            damaged.faults()
            damaged.uses()
            assert damaged.files() == before

    try:
        attempt()
    finally:
        (damaged.folder / name).write_bytes(damaged.whole[name])


@pytest.mark.slow
def test_wrong_types_and_sizes(damaged: Damaged) -> None:
    if not damaged.is_encoder:  # of before: without hashes, so that all else is read
        damaged.whole["status.json"] = b'{"state": "stopped"}'
        (damaged.folder / "status.json").write_bytes(damaged.whole["status.json"])
    for name in damaged.kinds:
        if name.endswith((".json", ".jsonl", ".yaml")):
            mistype(damaged, name)
    print(damaged.folder.name, f"{damaged.tried:,} tried")


@pytest.mark.slow
@settings(max_examples=200, **FUZZ)
@given(st.deferred(lambda: texts("settings.yaml", dump_settings(tiny_settings()).encode())))
def test_settings_of_wrong_types_and_sizes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "settings.yaml"
    path.write_bytes(content)
    try:
        load_settings(str(path))
    except UserError as error:
        line_of(error)


def test_yaml_with_a_nul_is_refused_in_a_line() -> None:
    with pytest.raises(UserError) as caught:
        parse_yaml("epochs: 1\0", "settings.yaml")
    line_of(caught.value)
