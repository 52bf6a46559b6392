"""Shards in an object store: fsspec's memory file system, or a moto server, stands for one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_shards import labelled_tars, png

from ccl.data import BadImageError, load_dataset, remote_files
from ccl.data.shards import open_shards, shard_paths
from ccl.errors import UserError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Three shards below memory://test-bucket."""
    monkeypatch.setattr(remote_files, "SCHEMES", ("memory://",))
    files = fsspec.filesystem("memory")
    for path in labelled_tars(tmp_path / "made"):
        files.pipe_file(f"memory://test-bucket/{path.name}", path.read_bytes())
    yield "memory://test-bucket"
    files.rm("/test-bucket", recursive=True)


def test_shards_of_a_store_are_read_by_ranges(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [f"{store}/part-00{number}.tar" for number in range(3)]
    assert shard_paths(f"{store}/part-*.tar") == shard_paths(f"{store}/part-{{000..002}}.tar") == expected
    found = open_shards(expected)
    monkeypatch.setattr(remote_files, "open_remote", lambda path: pytest.fail("opened as a whole"))
    assert [found.source.encoded(at) for at in range(30)] == [png(number) for number in range(30)]
    assert found.source.name(17) == f"{store}/part-001.tar::0017"
    dataset = load_dataset(f"shards:{store}/part-*.tar", tmp_path)  # from the kept index
    assert (len(dataset.train), dataset.class_names) == (24, ("0", "1"))


def test_a_shard_that_changes_is_noticed(store: str) -> None:
    found = open_shards([f"{store}/part-000.tar"])
    fsspec.filesystem("memory").pipe_file(f"{store}/part-000.tar", b"other")
    with pytest.raises(BadImageError, match="changed after it was indexed"):
        found.source.encoded(0)


def test_what_a_store_refuses_is_one_line(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"there is no shard 'memory://test-bucket/x.tar'"):
        open_shards([f"{store}/x.tar"])
    with pytest.raises(UserError, match="names no shards"):
        shard_paths(f"{store}/x-*.tar")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Access\nDenied")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", refuse)
    with pytest.raises(UserError, match=r"\(PermissionError: Access Denied\); are the credentials set"):
        open_shards([f"{store}/part-000.tar"])


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=r"needs a package that is missing .* pip install '.\[remote\]'"):
        open_shards(["s3://bucket/x.tar"])
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UserError, match=r"s3:// needs fsspec, .* pip install '.\[remote\]'"):
        open_shards(["s3://bucket/x.tar"])


@pytest.mark.slow
def test_an_s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real client over HTTP to a server on this machine."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "made",
            "AWS_SECRET_ACCESS_KEY": "up",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        files = fsspec.filesystem("s3", skip_instance_cache=True)
        files.mkdir("s3://bucket")
        for path in labelled_tars(tmp_path / "made"):
            files.pipe_file(f"s3://bucket/{path.name}", path.read_bytes())
        found = open_shards(shard_paths("s3://bucket/part-*.tar"))
        assert [found.source.encoded(at) for at in range(30)] == [png(number) for number in range(30)]
        with pytest.raises(UserError, match="there is no shard"):
            open_shards(["s3://bucket/x.tar"])
    finally:
        server.stop()
