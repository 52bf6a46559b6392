"""Is a run folder intact? Every file of it: good, mendable, or lost."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ccl.data import BadImageError, FileSource
from ccl.errors import counted
from ccl.runs.run_folder import CHECKPOINTS, MEMORY, read_run
from ccl.training.checkpoint import CheckpointStore


@dataclass(frozen=True)
class Checked:
    """What was found of a file, a version or a checkpoint."""

    what: str
    state: Literal["good", "mended", "mendable", "lost", "unknown"]  # unknown: nobody counts on it
    about: str = ""

    @property
    def is_fault(self) -> bool:
        return self.state in ("mendable", "lost")


def check_run(folder: Path, repair: bool = False) -> Iterator[Checked]:
    """Check a run folder's files; with `repair`, mend what can be mended."""
    record = read_run(folder)
    what = (record.settings.strategy, record.settings.objective, record.protocol["dataset"])
    accuracies = "no accuracies yet" if record.accuracy is None else "accuracies"
    rows = f"{record.status.get('state')}, {len(record.rows)} metric rows, {accuracies}"
    yield Checked(str(folder), "good", f"{', '.join(what)}, seed {record.settings.seed}; {rows}")
    yield from check_checkpoints(folder)
    images = sorted(path for path in (folder / MEMORY).glob("*") if path.suffix != ".csv")
    for path in images:
        try:
            FileSource([path]).picture(0)
        except BadImageError as error:
            yield Checked(f"memory/{path.name}", "lost", error.reason)
    yield Checked("memory", "good", f"{counted(len(images), 'image')} written out")


def check_checkpoints(folder: Path) -> Iterator[Checked]:
    """Check the checkpoints of a run or of a drop under way."""
    for finding in CheckpointStore(folder / CHECKPOINTS).check():
        what = f"checkpoint {finding.folder.name}"
        if finding.reason is not None:
            yield Checked(what, "lost", finding.reason)
        else:
            size = f"{finding.num_bytes / 1e6:.1f} MB"
            yield Checked(what, "good", f"{size}, {counted(finding.about['position']['step'], 'step')} complete")
