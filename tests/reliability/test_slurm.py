"""Promises on a real Slurm of two nodes: requeued, on a node that dies, cancelled, closed and reopened."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
from crash_test import fingerprint
from real_slurm import RealSlurm, free_ports, wait_until, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

HANG = 600  # seconds: what nothing here comes near
SMALL = [*processes.SMALL, "--set=probe.after=never", "--set=checkpoint.minutes=0.01"]
TWELVE = [*SMALL, "--set=epochs=10", "--strategies=finetuning,ccl", "--seeds=0-5"]
ONE = ["--strategies=ccl", "--seeds=0"]
RANKS = [
    *(*SMALL, "--set=data.resize=16", "--set=data.images_per_class=20", "--set=data.classes=4", "--set=epochs=6"),
    *("--set=batch_size=16", "--set=encoder.dim=16", "--set=encoder.batch_norm_groups=2", "--set=device=cpu"),
    *("--set=moco_v2.queue_size=64", "--set=extra_sample_queue.size=16"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    made = RealSlurm(tmp_path_factory.mktemp("slurm") / "here")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two ranks by torchrun on this machine, unbroken."""
    here = tmp_path_factory.mktemp("two") / "run"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [sys.executable, *launcher, "-m", "ccl", "run", "demo", *RANKS, "--out", str(here)]
    subprocess.run(words, check=True, capture_output=True, timeout=HANG)
    return here


class Command:
    """`ccl compare demo …` as a process, with the words it has written so far."""

    def __init__(self, cluster: RealSlurm, out: Path, *arguments: str, extra: dict[str, str] | None = None) -> None:
        self.began = time.monotonic()
        self._words = out.with_suffix(f".{time.time_ns()}.txt")
        words = [sys.executable, "-m", "ccl", "compare", "demo", *arguments, "--out", str(out)]
        with self._words.open("wb") as output:
            self.process = subprocess.Popen(
                words, stdout=output, stderr=subprocess.STDOUT, env=cluster.environment | (extra or {})
            )

    def words(self) -> str:
        return self._words.read_text()

    def finish(self, exit_code: int = 0) -> str:
        self.process.wait(HANG)
        assert self.process.returncode == exit_code, self.words()
        return self.words()


def local(cluster: RealSlurm, out: Path, *arguments: str) -> Path:
    """The same grid on this machine, unbroken."""
    Command(cluster, out, *arguments).finish()
    return out


def status(folder: Path) -> dict[str, object]:
    path = folder / "status.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def is_learning(folder: Path, after: float = 0.0) -> bool:
    now = status(folder)
    return now.get("state") == "running" and "epoch" in now and float(str(now["started"])) > after


def jobs(cluster: RealSlurm, out: Path) -> dict[str, str]:
    """The id of each cell's newest job, by the name that the grid's folder says."""
    lines = cluster.run("squeue", "-h", "--array", "--states=all", "-o", "%i|%j").splitlines()
    ids = {name: job for job, name in (line.split("|") for line in lines)}
    records = {file.stem: json.loads(file.read_text())["cells"] for file in (out / "slurm").glob("*.json")}
    return {cells[0]: ids[name] for name, cells in records.items() if len(cells) == 1}


def in_the_middle(cluster: RealSlurm, out: Path, but_not: list[str]) -> list[str]:
    """The jobs whose runs are in their first step."""
    running = [job for job, state in cluster.states().items() if state == "RUNNING" and job not in but_not]
    learning = [
        job for cell, job in jobs(cluster, out).items() if is_learning(out / cell) and status(out / cell)["step"] == 1
    ]
    return [job for job in running if job in learning]


def count_questions(folder: Path) -> dict[str, str]:
    """An environment in which each call of squeue leaves a line."""
    real = subprocess.run(["which", "squeue"], capture_output=True, text=True, check=True).stdout.strip()
    folder.mkdir()
    (folder / "squeue").write_text(f'#!/bin/sh\necho >> "{folder}/calls.txt"\nexec {real} "$@"\n')
    (folder / "squeue").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_r6_twelve_runs_on_two_nodes_whatever_happens(cluster: RealSlurm, tmp_path: Path) -> None:
    """Closed by SIGKILL, a node that dies, a job requeued, one cancelled: the bits are those of the unbroken runs."""
    expected = local(cluster, tmp_path / "local", *TWELVE)
    out, slurm, before = tmp_path / "grid", ["--on=slurm", "--slurm=--cpus-per-task=1 --time=30"], set(cluster.states())
    first = Command(cluster, out, *TWELVE, *slurm)
    cells = [f"{strategy}-moco_v2-seed{seed}" for seed in range(6) for strategy in ("finetuning", "ccl")]
    wait_until(lambda: any(is_learning(out / cell) for cell in cells[:4]), HANG, "no run learns")
    first.process.kill()
    first.process.wait()
    assert len(jobs(cluster, out)) == 12

    counted = count_questions(tmp_path / "bin")
    second = Command(cluster, out, *TWELVE, *slurm, extra=counted)
    node_of = dict(line.split() for line in cluster.run("squeue", "-h", "-t", "R", "-o", "%i %N").splitlines())
    lost = sorted(job for job, node in node_of.items() if node == "n1")
    assert lost
    cluster.kill_node("n1")

    wait_until(lambda: ", seed " in second.words(), HANG, "the second command never began")
    wait_until(lambda: in_the_middle(cluster, out, lost), HANG, "nothing to requeue")
    requeued = in_the_middle(cluster, out, lost)[0]
    cluster.run("scontrol", "requeue", requeued)
    cancelled = max((job for job in cluster.alive() if job not in {*lost, requeued}), key=int)
    cluster.run("scancel", cancelled)

    wait_until(lambda: any(cluster.states()[job] == "PENDING" for job in lost), HANG, "the node is not missed")
    cluster.start_node("n1")
    words = second.finish(1)
    num_questions = len((tmp_path / "bin" / "calls.txt").read_text().splitlines())
    seconds = time.monotonic() - second.began
    assert num_questions <= seconds + 2

    assert f"Slurm job {cancelled} has ended, and its run is not complete" in words
    assert "1 of 12 runs failed" in words
    assert cluster.alive() == []
    third = Command(cluster, out, *TWELVE, *slurm)
    lines = third.finish().splitlines()
    assert sum(": complete" in line for line in lines) == 12
    assert len({line.partition(":")[0] for line in lines if ": queued" in line or ": running" in line}) == 1

    logs = {cell: (out / "logs" / f"{cell}.txt").read_text() for cell in cells}
    num_resumed = sum(text.count("resuming at step") for text in logs.values())
    assert num_resumed >= 1
    assert len(set(cluster.states()) - before) == 13  # twelve, and the cancelled one again
    for cell in cells:
        assert fingerprint(out / cell) == fingerprint(expected / cell), cell


def test_ctrl_c_leaves_no_job_and_the_same_command_resumes_to_the_same_bits(cluster: RealSlurm, tmp_path: Path) -> None:
    """And so does a run that is stopped once more, as if its time were up, and one that is requeued by others."""
    arguments = [*SMALL, "--set=epochs=20", "--strategies=finetuning,ccl", "--seeds=0-2"]
    out, slurm, name = tmp_path / "grid", ["--on=slurm", "--slurm=--time=30"], "ccl-moco_v2-seed0"
    command = Command(cluster, out, *arguments, *slurm)
    wait_until(lambda: is_learning(out / name), HANG, "it does not learn")
    command.process.send_signal(signal.SIGINT)
    assert "runs under way save their state and end: " in command.finish(130)
    assert cluster.alive() == []
    assert status(out / name)["state"] == "stopped"
    stopped_at = time.time()
    command = Command(cluster, out, *arguments, *slurm)
    wait_until(lambda: is_learning(out / name, stopped_at), HANG, "it does not resume")
    cluster.run("scancel", "--batch", "--signal=USR1", jobs(cluster, out)[name])
    wait_until(lambda: in_the_middle(cluster, out, [jobs(cluster, out)[name]]), HANG, "nothing to requeue")
    [requeued, *_] = in_the_middle(cluster, out, [jobs(cluster, out)[name]])
    cluster.run("scontrol", "requeue", requeued)
    command.finish()
    logs = [(out / "logs" / f"{cell}.txt").read_text() for cell, job in jobs(cluster, out).items() if job == requeued]
    assert "start 2\n" in logs[0]
    assert "· resuming" in logs[0].split("start 2\n")[1]
    log = (out / "logs" / f"{name}.txt").read_text()
    assert log.count("· resuming") == 2  # at a step, or after the training of one
    assert f"Slurm job {jobs(cluster, out)[name]} on " in log.split("start 2")[0]
    expected = local(cluster, tmp_path / "local", *arguments)
    for folder in [path.parent for path in out.glob("*/status.json")]:
        assert fingerprint(folder) == fingerprint(expected / folder.name)


def test_a_run_longer_than_its_time_saves_and_requeues_itself(cluster: RealSlurm, tmp_path: Path) -> None:
    arguments = [*SMALL, "--set=epochs=1000000", *ONE, "--on=slurm", "--slurm=--time=2 --signal=B:USR1@10"]
    out = tmp_path / "grid"
    log = out / "logs" / "ccl-moco_v2-seed0.txt"
    Command(cluster, out, *arguments, "--detach").finish()
    command = Command(cluster, out, *arguments)
    wait_until(lambda: "its state is saved, the same command resumes" in log.read_text(), HANG, "it is not signalled")
    wait_until(lambda: "resuming at step" in log.read_text(), HANG, "it does not resume")
    command.process.send_signal(signal.SIGINT)
    command.finish(130)
    assert len(jobs(cluster, out)) == 1
    assert cluster.alive() == []


def test_more_than_a_hundred_runs_are_an_array_found_again_and_cancelled(cluster: RealSlurm, tmp_path: Path) -> None:
    out, before = tmp_path / "grid", set(cluster.states())
    arguments = [*SMALL, "--strategies=ccl", "--seeds=0-149", "--on=slurm", "--slurm=--hold"]
    words = Command(cluster, out, *arguments, "--detach", "--jobs=20").finish()
    assert "150 of 150 runs are with Slurm" in words
    [record] = (out / "slurm").glob("*.json")
    [job] = {job.partition("_")[0] for job in set(cluster.states()) - before}
    assert set(cluster.states()) - before == {f"{job}_{index}" for index in range(150)}
    assert f"{job}_[0-149%20]" in cluster.run("squeue", "-h", "-o", "%i").split()
    command = Command(cluster, out, *arguments)
    wait_until(lambda: "seed 149: queued" in command.words(), HANG, "the array was not found")
    command.process.send_signal(signal.SIGINT)
    command.finish(130)
    assert cluster.alive() == []
    assert list((out / "slurm").glob("*.json")) == [record]


def test_what_slurm_refuses_is_one_line_and_leaves_nothing(cluster: RealSlurm, tmp_path: Path) -> None:
    for option, expected in {
        "--partition=gpuu": "sbatch: invalid partition specified: gpuu; Invalid partition name specified",
        "--nodes=9": "sbatch: Requested node configuration is not available",
        "--tiem=3": "sbatch: unrecognized option '--tiem=3'",
    }.items():
        words = Command(cluster, tmp_path / "grid", *SMALL, "--on=slurm", f"--slurm={option}").finish(2)
        assert words == f"ccl: --on slurm: {expected}\n"
    assert not (tmp_path / "grid").exists()


def test_a_run_over_two_nodes_saves_requeues_and_equals_two_ranks_here(
    cluster: RealSlurm, two_ranks: Path, tmp_path: Path
) -> None:
    out, name = tmp_path / "grid", "ccl-moco_v2-seed0"
    slurm = ["--on=slurm", "--slurm=--nodes=2 --ntasks-per-node=1 --time=30", "--nproc-per-node=1"]
    extra = {"CCL_HEAD": "127.0.0.1", "CCL_PORT": str(free_ports(1)[0])}  # the nodes' names do not resolve here
    command = Command(cluster, out, *RANKS, *ONE, *slurm, extra=extra)
    wait_until(lambda: is_learning(out / name), HANG, "it does not learn")
    assert cluster.run("squeue", "-h", "-t", "R", "-o", "%N").split() == ["n[1-2]"]
    cluster.run("scancel", "--batch", "--signal=USR1", jobs(cluster, out)[name])  # as if the time were up
    command.finish()
    log = (out / "logs" / f"{name}.txt").read_text()
    assert "stopped by SIGTERM; its state is saved" in log
    assert "resuming at step" in log
    assert json.loads((out / name / "protocol.json").read_text())["world_size"] == 2
    assert fingerprint(out / name) == fingerprint(two_ranks)


def test_the_example_script_saves_requeues_and_comes_to_the_same_bits(
    cluster: RealSlurm, two_ranks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    extra = {"OUT": str(out), "PRESET": "demo", "HEAD": "127.0.0.1", "PORT": str(free_ports(1)[0])}
    extra["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = Path(__file__).parents[2] / "examples" / "slurm.sh"
    options = ["--gpus-per-node=0", "--cpus-per-task=1", "--time=30", f"--output={tmp_path / 'log.txt'}"]
    submitted = subprocess.run(
        ["sbatch", "--parsable", *options, str(script), *RANKS],
        env=cluster.environment | extra,
        capture_output=True,
        text=True,
    )
    job = submitted.stdout.strip()
    assert job, submitted.stderr
    wait_until(lambda: is_learning(out), HANG, "it does not learn")
    cluster.run("scancel", "--batch", "--signal=TERM", job)  # as --signal=B:TERM@… does when the time is nearly up
    wait_until(lambda: cluster.states()[job] == "COMPLETED", HANG, "it does not resume")
    log = (tmp_path / "log.txt").read_text()
    assert "stopped by SIGTERM; its state is saved" in log
    assert "resuming at step" in log
    assert fingerprint(out) == fingerprint(two_ranks)
