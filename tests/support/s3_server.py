"""An S3 server of this machine (moto, over HTTP), what it was asked for, and where clients find it."""

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

KEYS = {"AWS_ACCESS_KEY_ID": "made", "AWS_SECRET_ACCESS_KEY": "up", "AWS_DEFAULT_REGION": "us-east-1"}


class S3Server:
    """Requests are kept in the order in which they came: method, path and range."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked: list[tuple[str, str, str | None]] = []

    def ranges(self, path: str) -> list[str | None]:
        """Of what was read of a file."""
        return [span for method, where, span in self.asked if method == "GET" and where == path]

    def refuse_unknown_keys(self) -> None:
        """From now on only users that it knows, and it knows none."""
        self.tell("reset-auth", b"0")

    def tell(self, what: str, content: bytes) -> None:
        """A request to moto itself; as a form, which urllib would say it is, its content would not be seen."""
        request = urllib.request.Request(f"{self.address}/moto-api/{what}", content, {"Content-Type": "text/plain"})
        urllib.request.urlopen(request).close()


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Skips, saying so, where s3fs or moto is not installed."""
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed (pip install s3fs 'moto[server]')")
    moto: Any = pytest.importorskip("moto.server", reason="moto is not installed (pip install s3fs 'moto[server]')")
    from werkzeug.serving import make_server

    application = moto.DomainDispatcherApplication(moto.create_backend_app)

    def recording(environment: dict[str, Any], start: Any) -> Any:
        found = environment["REQUEST_METHOD"], environment["PATH_INFO"], environment.get("HTTP_RANGE")
        made.asked.append(found)
        return application(environment, start)

    server = make_server("127.0.0.1", 0, recording, threaded=True)
    made = S3Server(f"http://127.0.0.1:{server.server_port}")
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": made.address, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # of another server
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.tell("reset", b"")
        made.tell("reset-auth", b"inf")  # the number is one of the process, not of the server
        server.shutdown()
        thread.join()
        s3fs.S3FileSystem.clear_instance_cache()
