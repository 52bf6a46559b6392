"""A quick stand-in for `ccl run` that keeps a run folder's contract: lock, settings, status, exit codes.

Stopped, it leaves a checkpoint; started again, it is done at once. In `trace.txt` of the grid it says what it does.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from ccl.loading import dump_settings
from ccl.runs.grid import CellState, Watcher
from ccl.runs.grid_cells import Cell, Grid, make_cells

PROTOCOL = '{"dataset": "made", "all_at_once": false, "steps": [{"name": "1"}, {"name": "2"}]}'
STAND_IN = r"""#!{python} -S
import fcntl, json, os, shutil, signal, sys, time
_, settings, _, folder, *_ = sys.argv[sys.argv.index("run") :]  # SETTINGS --out FOLDER
grid, name = os.path.split(folder)
assert "-P" in sys.argv or os.environ.get("PYTHONSAFEPATH"), "it would import from the working directory"
def tell(what):
    with open(os.path.join(grid, "trace.txt"), "a") as file:
        file.write(f"{{what}} {{name}} {{os.getpid()}} {{os.environ['OMP_NUM_THREADS']}} {{os.getsid(0)}}\n")
def status(state):
    with open(os.path.join(folder, "status.json.part"), "w") as file:
        json.dump({{"state": state, "pid": os.getpid()}}, file)
    os.replace(os.path.join(folder, "status.json.part"), os.path.join(folder, "status.json"))
checkpoints = os.path.join(folder, "checkpoints")
def stop(number, frame):
    os.makedirs(os.path.join(checkpoints, str(time.time_ns())))
    status("stopped")
    tell("stop")
    sys.exit(128 + number)
os.makedirs(folder, exist_ok=True)
lock = open(os.path.join(folder, ".lock"), "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    tell("refused")
    sys.exit(print(f"ccl: --out {{folder}} is in use by process 1 on here") or 2)
if os.path.exists(os.path.join(folder, "status.json")):
    if json.load(open(os.path.join(folder, "status.json")))["state"] == "complete":
        sys.exit(0)  # another was faster
if os.path.exists(os.path.join(grid, "fail")):
    print("some words")
    sys.exit(print("ccl: no space left") or 1)
signal.signal(signal.SIGTERM, stop)
shutil.copy(settings, os.path.join(folder, "settings.yaml"))
open(os.path.join(folder, "protocol.json"), "w").write('{protocol}')
status("running")
tell("begin")
time.sleep(0 if os.path.exists(checkpoints) else {seconds})
status("complete")
tell("end")
"""


def install_run(folder: Path, python: str, seconds: float) -> Path:
    """Write it to a folder, to be called as Python would be: `PATH -m ccl run SETTINGS --out FOLDER`."""
    path = folder / "stand_in"
    path.write_text(STAND_IN.format(python=python, seconds=seconds, protocol=PROTOCOL))
    path.chmod(0o755)
    return path


class Spy(Watcher):
    """A watcher that remembers, and acts when told to."""

    def __init__(self, act: Callable[[Mapping[str, CellState]], None] = lambda states: None) -> None:
        self.notes: list[str] = []
        self.seen: list[dict[str, str]] = []
        self.act = act

    def note(self, text: str) -> None:
        self.notes.append(text)

    def show(self, states: Mapping[str, CellState]) -> None:
        self.seen.append({name: state.state for name, state in states.items()})
        self.act(states)

    def close(self) -> None:
        self.notes.append("closed")


def cells(num_seeds: int, *assignments: str) -> list[Cell]:
    return make_cells(Grid("demo", ["finetuning"], range(num_seeds)), assignments)


def trace(folder: Path) -> list[list[str]]:
    path = folder / "trace.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def told(folder: Path, what: str) -> list[str]:
    return [line[1] for line in trace(folder) if line[0] == what]


def complete(cell: Cell, folder: Path) -> None:
    """A run folder as a finished run leaves it."""
    folder.mkdir(parents=True)
    (folder / "settings.yaml").write_text(dump_settings(cell.settings))
    (folder / "protocol.json").write_text(PROTOCOL)
    (folder / "status.json").write_text('{"state": "complete"}')
