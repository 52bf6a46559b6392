"""How a run is shown: progress bars on a terminal, plain lines otherwise."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ccl.catalogue import short_of
from ccl.evaluation import ProbeResult
from ccl.strategies import STRATEGIES, strategy_title
from ccl.training import Observer, Remembered


class Speed:
    """Losses and images per second, smoothed over the last seconds."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A pause (a probe, a selection) is over: forget the time before."""
        self._started = time.perf_counter()
        self._num_images = 0
        self.losses: dict[str, float] = {}

    def add(self, losses: Mapping[str, float], num_images: int) -> None:
        """Count one update."""
        self._num_images += num_images
        for name, value in losses.items():
            self.losses[name] = 0.9 * self.losses.get(name, value) + 0.1 * value

    def __str__(self) -> str:
        rate = self._num_images / max(time.perf_counter() - self._started, 1e-9)
        terms = " ".join(f"{short_of(name)} {value:.3f}" for name, value in self.losses.items())
        return f"{terms}  {rate:,.0f} images/s"


class PlainDisplay(Observer):
    """Lines for a log file: at most one in `every` seconds, and one for each probe."""

    def __init__(self, console: Console, every: float = 10.0) -> None:
        self.console = console
        self.every = every
        self._speed = Speed()
        self._title, self._num_steps, self._epochs = "", 1, 1
        self._last = time.perf_counter()
        self._began: tuple[float, float] | None = None  # when, and after how many epochs: a run may resume half-way

    def note(self, text: str) -> None:
        self.console.print(f"· {text}", markup=False, highlight=False, soft_wrap=True)

    def run_begins(self, title: str, num_steps: int, epochs: int, first_step: int = 0) -> None:
        self._title, self._num_steps, self._epochs = _title(title), num_steps, epochs
        self._began = None

    def step_begins(self, step: int, num_new: int, num_old: int, is_new: bool) -> None:
        old = f" and {num_old:,} remembered" if num_old else ""
        resumed = "" if is_new else ", resumed"
        self.note(f"{self._title}: step {step + 1} of {self._num_steps}, {num_new:,} new images{old}{resumed}")
        self._speed.restart()

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None:
        self._speed.add(losses, num_images)
        if self._began is None:
            self._began = (time.perf_counter(), step * self._epochs + epoch + share)

    def epoch_ends(self, step: int, epoch: int, learning_rate: float) -> None:
        now = time.perf_counter()
        if now - self._last < self.every:
            return
        self._last = now
        done = step * self._epochs + epoch + 1
        began, done_then = self._began or (now, done)
        left = (now - began) / max(done - done_then, 1e-9) * (self._num_steps * self._epochs - done)
        self.note(f"step {step + 1} epoch {epoch + 1}/{self._epochs}  {self._speed}  {_clock(left)} left")

    def remembered(self, step: int, what: Remembered) -> None:
        self.note(_memory_line(self._title, step, what))

    def probed(self, step: int | None, result: ProbeResult) -> None:
        self.note(_probe_line(self._title, step, result))
        self._speed.restart()


class RichDisplay(Observer):
    """A bar for the run, with loss terms, images per second and the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._speed = Speed()
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._title, self._num_steps, self._epochs, self._first_step = "", 1, 1, 0

    def note(self, text: str) -> None:
        self.console.print(f"[dim]·[/dim] {escape(text)}", highlight=False)  # a path or an error may hold brackets

    def run_begins(self, title: str, num_steps: int, epochs: int, first_step: int = 0) -> None:
        self._title, self._num_steps, self._epochs = _title(title), num_steps, epochs
        self._first_step = first_step
        self._bar(f"{self._title}: preparing", 1.0)

    def _bar(self, text: str, total: float) -> None:
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[about]}", style="dim"),
                TimeRemainingColumn(compact=True),
                console=self.console,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(text, total=total, about="")
        self._progress.update(self._task, description=text, total=total)

    def loading(self, done: int, total: int) -> None:
        self._bar("loading data", float(total or 1))
        if self._progress is not None:
            self._progress.update(self._task, completed=done)

    def step_begins(self, step: int, num_new: int, num_old: int, is_new: bool) -> None:
        self._speed.restart()

    def updated(self, step: int, epoch: int, losses: Mapping[str, float], num_images: int, share: float) -> None:
        self._speed.add(losses, num_images)
        text = f"{self._title}: step {step + 1}/{self._num_steps} epoch {epoch + 1}/{self._epochs}"
        self._bar(text, float((self._num_steps - self._first_step) * self._epochs))
        if self._progress is not None:
            done = (step - self._first_step) * self._epochs + epoch + share
            self._progress.update(self._task, completed=done, about=str(self._speed))

    def remembered(self, step: int, what: Remembered) -> None:
        self.note(_memory_line(self._title, step, what))

    def probing(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress.update(self._task, about=f"probing {done}/{total}")

    def probed(self, step: int | None, result: ProbeResult) -> None:
        self.note(_probe_line(self._title, step, result))
        self._speed.restart()

    def run_ends(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def make_display() -> PlainDisplay | RichDisplay:
    """What suits the place where the output goes."""
    console = Console()
    return RichDisplay(console) if console.is_terminal or console.is_jupyter else PlainDisplay(console)


def _title(name: str) -> str:
    """Of a strategy; what is not one (the name of a drop) stays as it is."""
    return strategy_title(name) if name in STRATEGIES else name


def _probe_line(title: str, step: int | None, result: ProbeResult) -> str:
    when = "as initialised" if step is None else f"after step {step + 1}"
    each = " ".join(f"{accuracy:.1f}" for accuracy in result.per_step)
    return f"{title} {when}: all classes {result.all_class_total:.1f} %, each step's own {each}"


def _memory_line(title: str, step: int, what: Remembered) -> str:
    clusters = f" from {what.num_clusters} {'estimated ' if what.is_estimated else ''}clusters"
    kept = f"{what.num_kept:,} of its images{clusters if what.num_clusters else ''}"
    return f"{title} after step {step + 1}: remembers {kept}, {what.num_images:,} in all"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
