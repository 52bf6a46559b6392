"""The command line as a user meets it: real processes, exit codes, one clear line."""

import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import processes
import pytest
import torch
import typer

from ccl.cli import main
from ccl.cli.app import app
from ccl.runs import forecast
from ccl.training import precision

TINY = [*processes.SMALL, "--set=epochs=1"]


def ccl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return processes.ccl(*arguments, environment={**os.environ, "COLUMNS": "160", "CCL_DATA": "/nonexistent"})


def test_help_shows_commands_and_never_imports_torch() -> None:
    code = "import sys, ccl.cli.app, ccl.cli.methods; ccl.cli.methods.methods('strategies')"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    answer = ccl("--help")
    assert answer.returncode == 0
    assert all(command in answer.stdout for command in ("demo", "run", "doctor"))
    assert "Example: ccl run" in ccl("run", "--help").stdout


def test_every_help_ends_with_an_example_that_the_command_line_accepts() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands) == len(app.registered_commands) >= 17
    for name, command in commands.items():
        *_, last = (command.help or "").strip().splitlines()
        assert last.startswith(f"Example: ccl {name}"), name
        for example in last.removeprefix("Example: ").split(" && "):
            words = shlex.split(example)
            assert words[:2] == ["ccl", name]
            with command.make_context(name, words[2:]):  # an unknown option or a missing argument raises
                pass


def test_a_run_leaves_its_folder_and_the_same_command_again_touches_nothing(tmp_path: Path) -> None:
    out = tmp_path / "ein Lauf ü"
    first = ccl("run", "demo", *TINY, "--out", out)
    assert first.returncode == 0, first.stderr
    assert "after step 2: all classes" in first.stdout
    assert "CCL after step 2: remembers 6 of its images from 3 clusters, 12 in all" in first.stdout
    present = {path.name for path in out.iterdir()}
    assert present >= {"settings.yaml", "status.json", "metrics.jsonl", "accuracy.csv", "encoder.safetensors", "memory"}
    assert json.loads((out / "status.json").read_text())["state"] == "complete"
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["probe", *["step", "epoch", "memory", "probe"] * 2]
    assert set(rows[-3]["losses"]) == {"contrast", "distillation", "extra_sample_queue"}
    assert len(list((out / "memory").glob("*.png"))) == 12
    assert "<svg" in (out / "report.html").read_text()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    again = ccl("run", "demo", *TINY, "--out", out)
    assert again.returncode == 0
    assert "complete; nothing to do" in again.stdout
    assert all(path.stat().st_mtime_ns == mtime for path, mtime in before.items())
    other = ccl("run", "demo", *TINY, "--set=seed=5", "--out", out)
    assert other.returncode == 2
    assert "other settings" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "demos", "--out", "x"], "'demos' is neither a preset nor a file; did you mean 'demo'?"),
        (["run", "demo", "--set=batch_size=5000", "--out", "x"], "batch_size 5000 exceeds the 1,000 images of step 1"),
        (["run", "demo", "--set=memory.clusters=5000", "--out", "x"], "memory.clusters 5000 exceeds the 1,000 images"),
        (["run", "demo", "--set=dataset=greek", "--set=steps=11", "--out", "x"], "can't be cut in 11 steps"),
        (["run", "cifar100", "--out", "x"], "--data-root"),
        (["demo", "--strategies", "finetunning", "--out", "x"], "did you mean 'finetuning'?"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = ccl(*arguments)
    assert answer.returncode == 2
    assert told in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    assert not list(Path("x").rglob("*")) if Path("x").exists() else True


def test_an_output_that_is_a_file_or_holds_other_files_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert "is a file; name a folder" in ccl("run", "demo", "--out", file).stderr
    assert "can't be used" in ccl("run", "demo", "--out", file / "below").stderr
    assert "can't be used" in ccl("run", "demo", "--out", "/proc/nowhere").stderr
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "thesis.txt").write_text("mine")
    answer = ccl("run", "demo", "--out", stranger)
    assert answer.returncode == 2
    assert "is not a run folder" in answer.stderr
    assert (stranger / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["lern"], "ccl: no such command 'lern'. Did you mean 'learn'? see ccl --help"),
        (["run", "demo", "--st=3"], "ccl: no such option: --st (Possible options: --out, --set); see ccl run --help"),
        (["search", "my-encoder"], "ccl: missing argument 'QUERY'; see ccl search --help"),
        (["pin", "x", "one"], "ccl: invalid value for '[VERSION]': it must be an integer; see ccl pin --help"),
        (["run", "demo"], "ccl: --out DIR is missing: the run folder to make or to resume"),
    ],
)
def test_a_mistyped_command_or_option_is_one_plain_line_too(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ccl", *arguments])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 2
    assert capsys.readouterr().err.strip() == told


def test_without_a_command_the_help_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ccl"])
    with pytest.raises(SystemExit):
        main()
    answer = capsys.readouterr()
    assert "Usage: ccl" in answer.out
    assert answer.err == ""


def test_the_version_names_torch_and_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--version", "-V"):
        monkeypatch.setattr(sys, "argv", ["ccl", option])
        with pytest.raises(SystemExit) as leaving:
            main()
        assert not leaving.value.code
        words = capsys.readouterr().out.strip()
        assert words.startswith(f"ccl {version('ccl')}, torch {torch.__version__}, Python 3.")
        assert words.rpartition(", ")[2] in ("cpu", "cuda", "mps")


def test_a_shell_can_complete_commands() -> None:
    asked = {"_CCL_COMPLETE": "complete_bash", "COMP_WORDS": "ccl re", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['ccl']; from ccl.cli import main; main()"
    answer = subprocess.run([sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True)
    assert answer.stdout.split() == ["reproduce", "report"], answer.stderr


def test_the_demo_runs_every_strategy_and_resumes_where_it_was_stopped(tmp_path: Path) -> None:
    small = [*TINY, "--strategies", "finetuning,upper_bound", "--out", tmp_path / "demo"]
    assert ccl("demo", *small).returncode == 0
    status = tmp_path / "demo" / "finetuning-moco_v2-seed0" / "status.json"
    status.write_text(json.dumps({"state": "running"}))  # as a killed demo leaves it
    answer = ccl("demo", *small)
    assert answer.returncode == 0, answer.stderr
    assert "Finetuning, seed 0: running" in answer.stdout
    assert "Upper Bound, seed 0: running" not in answer.stdout  # it was complete
    assert "Finetuning, seed 0: complete, " in answer.stdout  # its row, as soon as it is done
    assert "Random initialisation" in answer.stdout
    assert "Upper Bound" in answer.stdout
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000


def test_doctor_answers_without_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(forecast, "seconds_here", lambda *_: pytest.fail("it measures unasked"))
    monkeypatch.setattr(precision, "trouble_with", lambda *_: pytest.fail("it tries formats unasked"))
    monkeypatch.setattr(sys, "argv", ["ccl", "doctor"])
    with pytest.raises(SystemExit):
        main()
    answer = capsys.readouterr().out
    assert [line.split()[0] for line in answer.splitlines()][:6] == [
        *("python", "torch", "memory", "disk", "device", "precision")
    ]
    assert "doctor --measure" in answer


@pytest.mark.slow
def test_doctor_measures_when_asked() -> None:
    answer = ccl("doctor", "--measure")
    assert answer.returncode == 0
    assert "images/s" in answer.stdout
    assert "on the CPU" in answer.stdout
