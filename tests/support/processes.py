"""Processes of `ccl` as a user starts them, forked from one that has imported what is heavy: that takes seconds each.

Each is a process of its own with its own signals, exit code, folder and environment, as `python -m ccl` has; only
torch and other packages are there already. `ccl` itself is imported anew, from where the tests have it or as told.
"""

import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Of `ccl run demo` and `ccl compare demo`: a run of a few seconds.
SMALL = [
    *("--set=dataset=symbols,textures", "--set=data.images_per_class=6", "--set=data.classes=3", "--set=batch_size=6"),
    *("--set=encoder.width=4", "--set=memory.per_cluster=2", "--set=threads=1"),
]

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["torch", "torch._dynamo", "sklearn.cluster", "matplotlib.figure", "PIL.Image", "pydantic", "typer", "rich", "yaml"]
)


class Process:
    """The face of `subprocess.Popen` for Python's words: `-m module …` or `-c code …`."""

    def __init__(
        self,
        words: Sequence[object],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        *,
        is_merged: bool = False,
    ) -> None:
        """`is_merged`: errors are among the standard output, as `stderr=subprocess.STDOUT` has them."""
        kept = tempfile.mkdtemp(prefix="ccl-outputs-")
        self._outputs = [f"{kept}/out", f"{kept}/{'out' if is_merged else 'error'}"]
        self._start(FORKED, words, environment, folder)
        weakref.finalize(self, _forget, self._process, kept)

    def _start(
        self, context: Any, words: Sequence[object], environment: Mapping[str, str] | None, folder: Path | None
    ) -> None:
        self.args = [*map(str, words)]
        where = dict(os.environ if environment is None else environment), str(folder or Path.cwd()), self._outputs
        self._process = context.Process(target=_work, args=(self.args, *where))
        self._process.start()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        found: int | None = self._process.exitcode
        return found

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Standard output and errors, once it has ended."""
        self.wait(timeout)
        out, error = (Path(name).read_text() for name in self._outputs)
        return out, error


class GridRun(Process):
    """The face of `ccl.runs.jobs.LocalProcess`: forked from the command itself, which has imported everything."""

    is_queued = False

    def __init__(self, command: Sequence[str], stdout: Any, env: Mapping[str, str], **_: object) -> None:
        self._outputs = [stdout.name, stdout.name]
        self._start(multiprocessing.get_context("fork"), command[2:], env, None)  # without -P


# A command that starts runs, whose runs are forked too.
GRID = """
from processes import GridRun
from ccl.runs import jobs
jobs.LocalProcess = GridRun
from ccl.cli import main
main()
"""


def run(
    words: Sequence[object],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` gives; one that takes too long is killed."""
    process = Process(words, environment, folder)
    try:
        out, error = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.wait(), out, error)


def ccl(
    *arguments: object, environment: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """The command line with these arguments."""
    return run(["-m", "ccl", *arguments], environment, timeout=timeout)


def _forget(process: Any, kept: str) -> None:
    """One that a failed test has left would be waited for at the end of all tests."""
    if process.is_alive():
        process.kill()
    shutil.rmtree(kept, ignore_errors=True)


def _work(words: list[str], environment: dict[str, str], folder: str, outputs: list[str]) -> None:
    os.setsid()  # as of a command of another terminal
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in enumerate(outputs, start=1):
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    what, name, *arguments = words
    sys.argv = [what, *arguments]
    if what == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})
