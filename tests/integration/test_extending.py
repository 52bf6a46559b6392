"""The examples of docs/extending.md: applied to a copy of the package, counted, checked, run, killed, spread."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import processes
import pytest
import torch
from in_ranks import free_port, rank_environment
from safetensors.torch import load_file
from tiny import TINY

ROOT = Path(__file__).parents[2]
SMALL = (*TINY, "probe.after=never", "threads=1", "checkpoint.minutes=1e-9", "checkpoint.keep=100")
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Example:
    """One section of the page."""

    files: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)  # path -> (where, anchor, content)
    commands: list[str] = field(default_factory=list)


def examples() -> dict[str, Example]:
    found: dict[str, Example] = {}
    page = (ROOT / "docs" / "extending.md").read_text()
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        example = Example()
        for kind, about, content in _BLOCK.findall(section):
            if kind == "sh":
                example.commands.append(content.strip())
                continue
            path = re.search(r"file=(\S+)", about)
            anchor = re.search(r'(after|before)="([^"]+)"', about)
            assert path, f"a block without a file: {about}"
            where = anchor.groups() if anchor else ("new", "")
            example.files.setdefault(path[1], []).append((*where, content))
        if example.commands:
            found[section.splitlines()[0]] = example
    return found


EXAMPLES = examples()


def apply(example: Example, root: Path) -> None:
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name, edits in example.files.items():
        path = root / name
        for where, anchor, content in edits:
            if where == "new":
                assert not path.exists()
                path.write_text(content)
                continue
            text = path.read_text()
            assert text.count(anchor) == 1, f"{name} has {anchor!r} {text.count(anchor)} times"
            first, last = (anchor + "\n", content) if where == "after" else (content, anchor + "\n")
            path.write_text(text.replace(anchor + "\n", first + last))


def python(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return processes.run(arguments, environment(root), root)


def environment(root: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}


def spread(root: Path, *arguments: str) -> None:
    """Two ranks, as torchrun starts them."""
    port = free_port()
    both = [
        processes.Process(arguments, environment(root) | rank_environment(number, 2, port), root) for number in range(2)
    ]
    told = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], told


def run_arguments(command: str, out: str, *more: str) -> list[str]:
    """The page's own command on a smaller stream, into another folder."""
    words = command.removeprefix("PYTHONPATH=. ").split()
    assert words[0] == "ccl"
    own = words[1 : words.index("--out")]
    # What the page sets comes last, so that it holds.
    sets = [word for value in SMALL for word in ("--set", value)]
    return [own[0], own[1], *sets, *own[2:], *(w for value in more for w in ("--set", value)), "--out", out]


def finished(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def newest_state(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(max((folder / "checkpoints").iterdir()) / "state.safetensors")


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [value for row in rows if row["kind"] == "epoch" for value in row["losses"].values()]


def test_the_page_has_an_example_of_each_kind() -> None:
    files = [name for example in EXAMPLES.values() for name in example.files]
    kinds = [f"my_{kind}.py" for kind in ("objective", "retention", "composition", "selection", "backbone")]
    assert sorted(files) == sorted([*kinds, "src/ccl/strategies.py"])  # one file each, and nothing else


# All in one process: importing torch takes longer than each of them.
RUN_ALL = """
import json, sys
from ccl.cli.app import app
for arguments in json.loads(sys.argv[1]):
    app(arguments, standalone_mode=False)
"""


def test_all_examples_are_clean_and_run_beside_each_other(tmp_path: Path) -> None:
    everything = Example()
    for example in EXAMPLES.values():
        everything.commands += example.commands
        for name, edits in example.files.items():
            everything.files.setdefault(name, []).extend(edits)
    apply(everything, tmp_path)
    files = [str(tmp_path / path) for path in everything.files]
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), *files],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
    runs = [run_arguments(command, f"run-{n}", "epochs=1") for n, command in enumerate(everything.commands)]
    finished(python(tmp_path, "-c", RUN_ALL, json.dumps(runs)))
    assert all((tmp_path / f"run-{n}" / "encoder.safetensors").exists() for n in range(len(runs)))


# Kills the process at its fifth update, which is in the second step; with five updates saved.
KILL = """
import os, signal, sys
from pathlib import Path
from ccl.loading import load_settings
from ccl import run
from ccl.training import Observer
class Killer(Observer):
    num_updates = 0
    def updated(self, *event):
        self.num_updates += 1
        if self.num_updates == 6:
            os.kill(os.getpid(), signal.SIGKILL)
sets = [word for flag, word in zip(sys.argv[2:-2], sys.argv[3:-2]) if flag == "--set"]
run(load_settings(sys.argv[2], sets), Path(sys.argv[-1]), Killer())
"""


_WITH_PREDICTOR = [name for name, example in EXAMPLES.items() if "predictor" in str(example.files)]


@pytest.mark.parametrize(
    "name", [_WITH_PREDICTOR[0], *(pytest.param(name, marks=pytest.mark.slow) for name in _WITH_PREDICTOR[1:])]
)
def test_a_predictor_learns_is_saved_survives_a_kill_and_agrees_over_ranks(name: str, tmp_path: Path) -> None:
    apply(EXAMPLES[name], tmp_path)
    command = EXAMPLES[name].commands[0]
    finished(python(tmp_path, "-m", "ccl", *run_arguments(command, "whole")))
    whole = newest_state(tmp_path / "whole")
    predictor = [key for key in whole if "predictor" in key and key.endswith("weight")]
    assert len(predictor) >= 2
    first = load_file(min((tmp_path / "whole" / "checkpoints").iterdir()) / "state.safetensors")
    assert all(not torch.equal(first[key], whole[key]) for key in predictor), "the predictor never moved"

    killed = python(tmp_path, "-c", KILL, *run_arguments(command, "killed"))
    assert killed.returncode == -9, killed.stderr[-2000:]
    again = python(tmp_path, "-m", "ccl", *run_arguments(command, "killed"))
    finished(again)
    assert "resuming at step 2" in again.stdout, again.stdout
    state = newest_state(tmp_path / "killed")
    assert state.keys() == whole.keys()
    assert all(state[key].numpy().tobytes() == whole[key].numpy().tobytes() for key in whole)  # scores may be nan

    groups = "encoder.batch_norm_groups=2"
    finished(python(tmp_path, "-m", "ccl", *run_arguments(command, "one", groups)))
    spread(tmp_path, "-m", "ccl", *run_arguments(command, "two", groups))
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    one, two = newest_state(tmp_path / "one"), newest_state(tmp_path / "two")
    for key in predictor:
        torch.testing.assert_close(two[key], one[key], rtol=1e-3, atol=1e-4)
