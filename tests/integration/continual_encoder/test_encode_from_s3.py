"""Features of shards in an object store, by the command."""

from collections.abc import Callable
from pathlib import Path

import pytest
from made_shards import labelled_tars
from s3_server import KEYS, serving

from ccl.continual_encoder.feature_files import read_features

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.slow
def test_features_of_a_store_are_those_of_the_same_files(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = labelled_tars(tmp_path / "in")
    with serving(monkeypatch):
        import fsspec

        files = fsspec.filesystem("s3")
        files.mkdir("s3://bucket")
        for path in paths:
            files.pipe_file(f"s3://bucket/{path.name}", path.read_bytes())
        code, told, error = command("encode", tmp_path, "shards:s3://bucket/part-*.tar", "-o", tmp_path / "s3.npz")
        assert (code, error) == (0, "")
        assert "30 images" in told
        code, told, error = command("learn", "shards:s3://bucket/part-*.tar", "--into", tmp_path / "new", "--dry-run")
        assert (code, error) == (0, "")
        assert "30 images" in told
        code, _, error = command("encode", tmp_path, "shards:s3://bucket/x.tar", "-o", tmp_path / "x.npz")
        assert (code, error) == (2, "ccl: there is no shard 's3://bucket/x.tar' in its store\n")
    assert command("encode", tmp_path, f"shards:{tmp_path}/in/part-*.tar", "-o", tmp_path / "local.npz")[0] == 0
    remote, local = read_features(tmp_path / "s3.npz"), read_features(tmp_path / "local.npz")
    assert remote.rows.equal(local.rows)
    assert remote.names[17] == "s3://bucket/part-001.tar::0017"


def test_addresses_reach_the_store_as_they_were_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen by the refusal, without a client or without credentials; a path would have lost a slash."""
    pytest.importorskip("fsspec")
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    for words in (["encode", tmp_path, "-o", tmp_path / "x.npz"], ["learn", "--into", tmp_path / "new"]):
        code, _, error = command(*words, "shards:s3://bucket/x.tar")
        assert code == 2
        assert "'s3://bucket/x.tar'" in error
