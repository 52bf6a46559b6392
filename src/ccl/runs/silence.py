"""What ranks other than the first have for a display and a log: nothing is shown, nothing written."""

from pathlib import Path
from typing import Any

from ccl.evaluation import AccuracyMatrix, ProbeResult
from ccl.training.loop import Quiet


class SilentDisplay(Quiet):
    """Shows nothing."""

    def note(self, text: str) -> None: ...

    def run_begins(self, title: str, num_steps: int, epochs: int, first_step: int = 0) -> None: ...

    def loading(self, done: int, total: int) -> None: ...

    def probing(self, done: int, total: int) -> None: ...

    def probed(self, step: int | None, result: ProbeResult) -> None: ...

    def run_ends(self) -> None: ...


class SilentLog(Quiet):
    """Knows the folder, which is the first rank's to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def state(self) -> dict[str, Any]:
        return {}

    def resume(self, state: Any) -> None: ...

    def begin(self) -> None: ...

    def status(self, state: str, **about: Any) -> None: ...

    def row(self, kind: str, **values: Any) -> None: ...

    def accuracy(self, matrix: AccuracyMatrix) -> None: ...
