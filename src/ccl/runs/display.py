"""The display of a run: progress bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ccl.errors import printable
from ccl.strategies import STRATEGIES, strategy_title
from ccl.training import Observer, Remembered

if TYPE_CHECKING:
    from ccl.evaluation import ProbeResult

_EVERY = 10.0  # seconds between two lines of a log


class Display(Observer):
    """Base class of both displays: the run's name and length, the speed, and a line for each memory and probe."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._title, self._epochs, self._first_step = "", 1, 0
        self._sizes: Sequence[int] = (1,)  # new images of each step
        self._began: tuple[float, float] | None = None  # when, and the share done: a run may resume half-way
        self._restart()

    def _restart(self) -> None:
        """After a pause (a probe, a selection) speed is measured anew."""
        self._started, self._num_images = time.perf_counter(), 0
        self._losses: dict[str, float] = {}  # smoothed over the last updates

    def note(self, text: str) -> None:
        note(self.console, text)

    def run_begins(self, title: str, sizes: Sequence[int], epochs: int, first_step: int = 0) -> None:
        self._title = strategy_title(title) if title in STRATEGIES else title  # of a drop, its own name
        self._sizes, self._epochs, self._first_step = sizes, epochs, first_step
        self._began = None

    def _share_done(self, step: int, epochs: float) -> float:
        """The share of all epochs and steps that is done, by their images, as steps differ in size."""
        before = sum(self._sizes[self._first_step : step]) * self._epochs
        all_images = sum(self._sizes[self._first_step :]) * self._epochs
        return (before + self._sizes[step] * epochs) / max(all_images, 1)

    def step_begins(self, step: int, num_new: int, num_old: int, is_new: bool) -> None:
        self._restart()

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None:
        self._num_images += num_images
        for name, value in losses.items():
            self._losses[name] = 0.9 * self._losses.get(name, value) + 0.1 * value

        if self._began is None:
            self._began = (time.perf_counter(), self._share_done(step, epoch + share))

    def _pace(self, done: float) -> str:
        """Loss terms, images per second, and the time left when so large a share is done."""
        now = time.perf_counter()
        rate = self._num_images / max(now - self._started, 1e-9)
        terms = " ".join(f"{name} {value:.3f}" for name, value in self._losses.items())
        began, before = self._began or (now, done)
        left = (now - began) / max(done - before, 1e-9) * (1.0 - done)
        time_left = f"  {str(timedelta(seconds=round(left))).removeprefix('0:')} left" if done > before else ""
        return f"{terms}  {rate:,.0f} images/s{time_left}"

    def remembered(self, step: int, what: Remembered) -> None:
        clusters = f" from {what.num_clusters} {'estimated ' if what.is_estimated else ''}clusters"
        kept = f"{what.num_kept:,} of its images{clusters if what.num_clusters else ''}"
        self.note(f"{self._title} after step {step + 1}: remembers {kept}, {what.num_images:,} in all")

    def probed(self, step: int | None, result: "ProbeResult") -> None:
        when = "as initialised" if step is None else f"after step {step + 1}"
        each = " ".join(f"{accuracy:.1f}" for accuracy in result.per_step)
        self.note(f"{self._title} {when}: all classes {result.all_class_total:.1f} %, each step's own {each}")
        self._restart()


class PlainDisplay(Display):
    """Lines for a log file: at most one in `_EVERY` seconds, and one for each probe."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last = time.perf_counter()

    def step_begins(self, step: int, num_new: int, num_old: int, is_new: bool) -> None:
        super().step_begins(step, num_new, num_old, is_new)
        old = f" and {num_old:,} remembered" if num_old else ""
        resumed = "" if is_new else ", resumed"
        self.note(f"{self._title}: step {step + 1} of {len(self._sizes)}, {num_new:,} new images{old}{resumed}")

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None:
        now = time.perf_counter()
        if now - self._last < _EVERY:
            return
        self._last = now
        self.note(f"step {step + 1} epoch {epoch + 1}/{self._epochs}  {self._pace(self._share_done(step, epoch + 1))}")


class RichDisplay(Display):
    """A bar for the run, with loss terms, images per second and the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def run_begins(self, title: str, sizes: Sequence[int], epochs: int, first_step: int = 0) -> None:
        super().run_begins(title, sizes, epochs, first_step)
        self._bar(f"{self._title}: preparing", 1.0)

    def _bar(self, text: str, total: float, **shown: Any) -> None:
        text = printable(text)
        if self._progress is None:
            percent = TextColumn("{task.percentage:>3.0f} %")
            about = TextColumn("{task.fields[about]}", style="dim", markup=False)
            bar = BarColumn(bar_width=24)
            described = TextColumn("{task.description}", markup=False)
            self._progress = Progress(described, bar, percent, about, console=self.console, transient=True)
            self._progress.start()
            self._task = self._progress.add_task(text, total=total, about="")
        self._progress.update(self._task, description=text, total=total, **shown)

    def loading(self, done: int, total: int) -> None:
        self._bar("loading data", float(total or 1), completed=done)

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None:
        super().updated(step, epoch, losses, num_images, share)
        text = f"{self._title}: step {step + 1}/{len(self._sizes)} epoch {epoch + 1}/{self._epochs}"
        done = self._share_done(step, epoch + share)
        self._bar(text, 1.0, completed=done, about=self._pace(done))

    def probing(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress.update(self._task, about=f"probing {done}/{total}")

    def run_ends(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def make_display() -> PlainDisplay | RichDisplay:
    """The display for this output: bars on a terminal, lines elsewhere."""
    console = Console()
    return RichDisplay(console) if console.is_terminal or console.is_jupyter else PlainDisplay(console)


def note(console: Console, text: str) -> None:
    """Print one line, without markup; what came from outside is shown, never obeyed."""
    console.print(f"· {printable(text)}", markup=False, highlight=False, soft_wrap=True)
