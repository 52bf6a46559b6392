"""Shards in an object store: fsspec's memory file system, or a moto server, stands for one."""

import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from made_shards import labelled_tars, png
from s3_server import KEYS, S3Server, serving

from ccl.data import BadImageError, load_dataset, object_store
from ccl.data.finding_images import Found
from ccl.data.ingest import collected
from ccl.data.shards import open_shards, shard_paths
from ccl.errors import UserError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Three shards below memory://test-bucket."""
    monkeypatch.setattr(object_store, "SCHEMES", ("memory://",))
    files = fsspec.filesystem("memory")
    for path in labelled_tars(tmp_path / "made"):
        files.pipe_file(f"memory://test-bucket/{path.name}", path.read_bytes())
    yield "memory://test-bucket"
    files.rm("/test-bucket", recursive=True)


def test_shards_of_a_store_are_read_by_ranges(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [f"{store}/part-00{number}.tar" for number in range(3)]
    assert shard_paths(f"{store}/part-*.tar") == shard_paths(f"{store}/part-{{000..002}}.tar") == expected
    found = open_shards(expected)
    monkeypatch.setattr(object_store, "open_remote", lambda path: pytest.fail("opened as a whole"))
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


def test_a_store_that_refuses_while_images_are_read_loses_none(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of thirty would be few enough to be left out as a bad image."""
    source, files = open_shards(shard_paths(f"{store}/part-*.tar")).source, fsspec.filesystem("memory")
    ask, asked = files.cat_file, 0

    def refuse_one(*words: object, **options: object) -> object:
        nonlocal asked
        asked += 1
        if asked == 17:
            raise PermissionError("The token has expired")
        return ask(*words, **options)

    monkeypatch.setattr(type(files), "cat_file", staticmethod(refuse_one))
    with pytest.raises(UserError, match=r"\(PermissionError: The token has expired\); are the credentials set"):
        collected(Found(source))
    assert len(collected(Found(source)).source) == 30


def test_a_store_that_is_lost_while_a_shard_is_indexed_is_one_line(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors of clients are of any kind."""

    class LostFile:
        def read(self, num_bytes: int) -> bytes:
            raise RuntimeError("Connection\nreset")

        def close(self) -> None: ...

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "open", lambda *_, **__: LostFile())
    with pytest.raises(UserError, match=r"^can't read '.*part-000.tar' \(RuntimeError: Connection reset\); are the"):
        open_shards([f"{store}/part-000.tar"])


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=r"needs a package that is missing .* pip install '.\[remote\]'"):
        open_shards(["s3://bucket/x.tar"])
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UserError, match=r"s3:// needs fsspec, .* pip install '.\[remote\]'"):
        open_shards(["s3://bucket/x.tar"])


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Three shards in s3://bucket of a server on this machine, read by a real client over HTTP."""
    with serving(monkeypatch) as server:
        files = fsspec.filesystem("s3", skip_instance_cache=True)
        files.mkdir("s3://bucket")
        for path in labelled_tars(tmp_path / "made"):
            files.pipe_file(f"s3://bucket/{path.name}", path.read_bytes())
        server.asked.clear()
        yield server


@pytest.mark.slow
def test_an_s3_server_is_asked_for_the_bytes_of_each_image(s3: S3Server) -> None:
    found = open_shards(shard_paths("s3://bucket/part-*.tar"))
    s3.asked.clear()
    assert [found.source.encoded(at) for at in range(30)] == [png(number) for number in range(30)]
    spans = [s3.ranges(f"/bucket/part-00{number}.tar") for number in range(3)]
    assert [len(some) for some in spans] == [10, 10, 10]
    # The first file of a tar lies behind a header of 512 bytes; the end of a range is its last byte.
    assert spans[0][0] == f"bytes=512-{512 + len(png(0)) - 1}"
    assert shard_paths("s3://bucket/part-{000..002}.tar") == shard_paths("s3://bucket/part-*.tar")


@pytest.mark.slow
def test_forked_workers_read_from_an_s3_server(s3: S3Server) -> None:
    """As the workers of a loader are: forked from a process that has a connection."""
    found = open_shards(shard_paths("s3://bucket/part-*.tar"))
    assert found.source.encoded(0) == png(0)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as workers:
        assert list(workers.map(found.source.encoded, range(30), timeout=60)) == [png(number) for number in range(30)]


@pytest.mark.slow
def test_what_an_s3_server_refuses_is_one_line(s3: S3Server) -> None:
    found = open_shards(["s3://bucket/part-000.tar"])
    for path in ("s3://bucket/x.tar", "s3://nowhere/x.tar", "s3://nowhere/part-*.tar"):
        with pytest.raises(UserError) as caught:
            open_shards(shard_paths(path))
        assert str(caught.value) == f"there is no shard {path!r} in its store"
    with pytest.raises(UserError, match=r"shards:s3://bucket/x-\*\.tar names no shards"):
        shard_paths("s3://bucket/x-*.tar")
    s3.refuse_unknown_keys()
    fsspec.filesystem("s3").invalidate_cache()
    refused = r"can't read 's3://bucket/part-00[12*].tar' \(PermissionError: [^\n]+\); are the credentials set"
    with pytest.raises(UserError, match=refused):
        open_shards(["s3://bucket/part-001.tar"])
    with pytest.raises(UserError, match=refused):
        shard_paths("s3://bucket/part-00*.tar")
    with pytest.raises(UserError, match="are the credentials set"):  # refused while it is read
        found.source.encoded(3)


@pytest.mark.slow
def test_no_credentials_and_no_server_are_one_line(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    type(fsspec.filesystem("s3")).clear_instance_cache()
    with pytest.raises(UserError, match=r"can't read 's3://bucket/part-000.tar' \(EndpointConnectionError: "):
        open_shards(["s3://bucket/part-000.tar"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    type(fsspec.filesystem("s3")).clear_instance_cache()
    with pytest.raises(UserError, match=r"\(NoCredentialsError: [^\n]+\); are the credentials set"):
        open_shards(["s3://bucket/part-000.tar"])
