"""Features in parts: by several processes, broken off and taken up again, equal to those of one pass."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from made_shards import png, write_tar

from ccl.continual_encoder import FrozenEncoder
from ccl.continual_encoder.features import (
    MANIFEST,
    Manifest,
    begin,
    missing_parts,
    parse_share,
    part_path,
    read_features,
    read_parts,
    write_parts,
)
from ccl.data import find_images
from ccl.errors import UserError

MakeFrozen = Callable[..., FrozenEncoder]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """A hundred records in two shards; number 33 is not an image."""
    for shard in range(2):
        numbers = range(shard * 50, (shard + 1) * 50)
        files = {f"{number:02d}.png": b"<html>" if number == 33 else png(number) for number in numbers}
        write_tar(tmp_path / "in" / f"s-{shard}.tar", files)
    return f"shards:{tmp_path}/in/s-{{0..1}}.tar"


def test_shares_broken_and_resumed_give_the_rows_of_one_pass(
    make_frozen: MakeFrozen, shards: str, tmp_path: Path
) -> None:
    encoder, out = make_frozen(), tmp_path / "features"
    images = find_images([shards], tmp_path)
    manifest = Manifest.of(encoder, images.source, part_images=20)
    assert manifest.num_parts == 5
    begin(out, manifest)
    first = write_parts(out, manifest, encoder, images, parse_share("1/2"))
    assert [next(first).number, next(first).number] == [0, 2]  # then it is broken off
    first.close()
    begin(out, manifest)
    written = list(write_parts(out, manifest, encoder, images, parse_share("2/2")))
    assert [(part.number, part.num_rows, part.num_bad) for part in written] == [(1, 19, 1), (3, 20, 0)]
    assert missing_parts(out, manifest) == [4]
    with pytest.raises(UserError, match=r"1 of 5 parts are missing, the first is part-000004.npz"):
        read_parts(out)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert [part.number for part in write_parts(out, manifest, encoder, images)] == [4]
    assert {path: path.stat().st_mtime_ns for path in before} == before  # what was done is not touched
    found = read_parts(out)
    sound = [number for number in range(100) if number != 33]
    assert [name.rpartition("::")[2] for name in found.names] == [f"{number:02d}" for number in sound]
    whole = encoder.features(images.source.subset(torch.tensor(sound)))
    assert torch.allclose(found.rows, whole, rtol=0, atol=1e-6)
    assert "s-0.tar::33" in (out / "part-000001.bad_images.csv").read_text()


def test_a_folder_of_other_images_or_another_version_is_refused(
    make_frozen: MakeFrozen, shards: str, tmp_path: Path
) -> None:
    source = find_images([shards], tmp_path).source
    manifest = Manifest.of(make_frozen(), source, part_images=12)
    begin(tmp_path / "f", manifest)
    kept = (tmp_path / "f" / MANIFEST).read_bytes()
    part = source.subset(torch.arange(99))
    for other, what in (
        (Manifest.of(make_frozen(), part, part_images=12), "num_images"),
        (Manifest.of(make_frozen(), source.subset(torch.arange(99, -1, -1)), part_images=12), "images"),
        (Manifest.of(make_frozen(), source, part_images=13), "part_images"),
        (Manifest.of(make_frozen(seed=1), source, part_images=12), "about"),
    ):
        with pytest.raises(UserError, match=rf"another {what} in manifest.json"):
            begin(tmp_path / "f", other)
    assert (tmp_path / "f" / MANIFEST).read_bytes() == kept
    with pytest.raises(UserError, match="not empty and has no manifest"):
        begin(tmp_path / "in", manifest)
    with pytest.raises(UserError, match="into a folder; name one"):
        begin(tmp_path / "f.npz", manifest)
    (tmp_path / "f" / MANIFEST).write_text(json.dumps({"num_images": 3}))
    with pytest.raises(UserError, match="is not a folder of features"):
        read_parts(tmp_path / "f")


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "-1/2", ""])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not one of 1/N … N/N"):
        parse_share(text)


def test_the_command_writes_parts_that_search_reads(command: Command, shards: str, tmp_path: Path) -> None:
    out, query = tmp_path / "features", tmp_path / "query.png"
    query.write_bytes(png(7))
    encode = ["encode", tmp_path, shards, "-o", out, "--part-images", 20, "--shard"]
    code, told, error = command(*encode, "2/2")
    assert (code, error) == (0, "")
    assert "2 parts with 39 images written by version 3, 1 left out" in told
    assert "2 of 5 parts are done" in told
    code, _, error = command("search", tmp_path, query, "-f", out, "-o", tmp_path / "s.html")
    assert code == 2
    assert "3 of 5 parts are missing" in error
    assert "5 of 5 parts are done" in command(*encode, "1/2")[1]
    assert read_features(part_path(out, 4)).rows.shape[0] == 20
    assert command("search", tmp_path, query, "-f", out, "-k", 1, "-o", tmp_path / "s.html")[0] == 0
    assert "s-0.tar::07" in (tmp_path / "s.html").read_text()
