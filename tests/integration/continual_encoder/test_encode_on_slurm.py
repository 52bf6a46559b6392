"""`ccl encode --on slurm` with stand-ins for Slurm's commands and for the jobs' own `ccl encode --shard`."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from made_shards import png, write_tar
from slurm_stand_in import SlurmStandIn

from ccl.continual_encoder import FrozenEncoder
from ccl.continual_encoder.feature_jobs import PartsRequest, ShareRun, run_jobs
from ccl.continual_encoder.feature_parts import Manifest
from ccl.data.found_images import find_images
from ccl.data.shards import absolute_input
from ccl.errors import StoppedError
from ccl.runs import slurm_commands
from ccl.runs.slurm import SlurmLauncher

MakeFrozen = Callable[..., FrozenEncoder]
Command = Callable[..., tuple[int, str, str]]

# Copies the parts of its share from a folder where they are ready, one by one, and leaves a line for each. With a file
# `fail` beside the folder of parts it copies one and fails; with `slow` it takes its time for each.
JOB = r"""#!{python} -S
import os, shutil, sys, time
words = sys.argv[1:]
out, (this, of) = words[words.index("--out") + 1], map(int, words[words.index("--shard") + 1].split("/"))
here = os.path.dirname(out)
with open(os.path.join(here, "words.txt"), "a") as file:
    file.write("\t".join(words) + "\n")
if os.path.exists(os.path.join(here, "lost")):
    sys.exit(0)
for number in range(this - 1, 5, of):
    name = f"part-{{number:06d}}.npz"
    if os.path.exists(os.path.join(out, name)):
        continue
    for file in [f"part-{{number:06d}}.bad_images.csv", name]:
        if os.path.exists(os.path.join(here, "ready", file)):
            shutil.copy(os.path.join(here, "ready", file), os.path.join(out, file + ".new"))
            os.replace(os.path.join(out, file + ".new"), os.path.join(out, file))
    time.sleep(30 if os.path.exists(os.path.join(here, "slow")) else 0)
    if this == 2 and os.path.exists(os.path.join(here, "fail")):
        sys.exit(print("ccl: no space left") or 1)
"""


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """A hundred records in two shards; number 33 is not an image."""
    for shard in range(2):
        numbers = range(shard * 50, (shard + 1) * 50)
        files = {f"{number:02d}.png": b"<html>" if number == 33 else png(number) for number in numbers}
        write_tar(tmp_path / "in" / f"s-{shard}.tar", files)
    return "shards:in/s-{0..1}.tar"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, shards: str) -> Iterator[SlurmStandIn]:
    """Parts of 20 images are ready; jobs only copy them."""
    monkeypatch.chdir(tmp_path)
    assert command("encode", "enc", shards, "-o", "ready", "--part-images", 20, "--shard", "1/1")[0] == 0
    made = SlurmStandIn(tmp_path / "bin")
    job = tmp_path / "job"
    job.write_text(JOB.format(python=sys.executable))
    job.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(job))
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_commands, "SECONDS_BETWEEN_QUESTIONS", 0.1)
    monkeypatch.setattr(SlurmLauncher, "seconds_between_looks", 0.1)
    yield made
    for name in made.jobs():
        if not made.is_over(name):
            os.killpg(int((made.folder / f"job-{name}" / "pid").read_text()), signal.SIGKILL)


def encode(shards: str, *more: object) -> Sequence[object]:
    return ["encode", "enc", shards, "-o", "features", "--part-images", 20, "--on", "slurm", *more]


def commands(folder: Path) -> list[list[str]]:
    return sorted(line.split("\t") for line in (folder / "words.txt").read_text().splitlines())


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}


def test_an_array_of_shares_fills_the_folder(
    command: Command, cluster: SlurmStandIn, shards: str, tmp_path: Path
) -> None:
    code, told, error = command(*encode(shards, "--jobs", 2, "--slurm", "--partition=gpu"))
    assert (code, error) == (0, "")
    [words] = cluster.submissions()
    assert {"--array=0-1", "--partition=gpu", "--requeue"} <= set(words)
    assert cluster.jobs() == ["1_0", "1_1"]
    # Absolute paths, and the version that was current at the submission.
    expected = ["-m", "ccl", "encode", str(tmp_path / "enc"), f"shards:{tmp_path}/in/s-{{0..1}}.tar"]
    expected += ["--out", str(tmp_path / "features"), "--shard", "1/2", "--part-images", "20", "--version", "3"]
    assert commands(tmp_path) == [expected, [*expected[:8], "2/2", *expected[9:]]]
    assert parts(tmp_path / "features") == parts(tmp_path / "ready")
    assert "5 parts with 99 images written by version 3, 1 left out as not usable" in told
    assert "5 of 5 parts are done: features" in told
    assert " of 5 parts done, jobs: " in told
    # All is done: nothing more is submitted.
    assert "0 parts with 0 images written" in command(*encode(shards))[1]
    assert len(cluster.submissions()) == 1


def test_never_more_jobs_than_parts(command: Command, cluster: SlurmStandIn, shards: str) -> None:
    assert command(*encode(shards))[0] == 0
    assert len(cluster.jobs()) == 5


def test_a_failed_job_shows_the_end_of_its_log_and_the_same_command_does_the_rest(
    command: Command, cluster: SlurmStandIn, shards: str, tmp_path: Path
) -> None:
    (tmp_path / "fail").touch()
    code, told, error = command(*encode(shards, "--jobs", 2))
    assert code == 1
    assert "4 of 5 parts are done" in told
    log = tmp_path / "features" / "logs" / "share-2-of-2.txt"
    assert error.splitlines() == [
        "ccl: share 2/2 failed: exit code 1",
        "     Slurm job 1_1 on n1, start 1",
        "     ccl: no space left",
        f"     its whole output: {log}",
        "ccl: 1 of 2 jobs failed; the same command tries them again",
    ]
    (tmp_path / "fail").unlink()
    code, told, error = command(*encode(shards, "--jobs", 2))
    assert (code, error) == (0, "")
    assert "1 part with 20 images written" in told
    assert len(cluster.jobs()) == 3  # the share that was not complete, alone
    assert parts(tmp_path / "features") == parts(tmp_path / "ready")


def test_success_without_parts_is_a_failure(
    command: Command, cluster: SlurmStandIn, shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccl.runs.slurm._PATIENCE", 0.2)
    (tmp_path / "lost").touch()
    code, _, error = command(*encode(shards, "--jobs", 1))
    assert code == 1
    assert "Slurm job 1 ended with success, but its results are not complete" in error


def test_detached_jobs_are_found_again_whatever_number_is_asked_for(
    command: Command, cluster: SlurmStandIn, shards: str, tmp_path: Path
) -> None:
    cluster.mark("hold")
    code, told, _ = command(*encode(shards, "--jobs", 3, "--detach"))
    assert code == 0
    assert "0 of 5 parts are done" in told
    assert "3 of 3 jobs are with Slurm; the same command without --detach follows them" in told
    assert "3 of 3 jobs are with Slurm" in command(*encode(shards, "--jobs", 3, "--detach"))[1]
    cluster.unmark("hold")
    code, told, _ = command(*encode(shards, "--jobs", 2))
    assert code == 0
    assert "5 of 5 parts are done" in told
    assert len(cluster.submissions()) == 1
    assert {words[8] for words in commands(tmp_path)} == {"1/3", "2/3", "3/3"}


def test_ctrl_c_leaves_no_job(make_frozen: MakeFrozen, cluster: SlurmStandIn, shards: str, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    source, _, _ = find_images([shards], tmp_path)
    asked = PartsRequest(Path("enc"), [shards], Path("features"), Manifest.of(make_frozen(), source, 20))
    launcher = SlurmLauncher(asked.folder, [], array_from=2)
    launcher.open(print)

    class Silent:
        def note(self, text: str) -> None: ...

        def close(self) -> None: ...

    def stop(runs: Sequence[ShareRun]) -> None:
        if len(parts(asked.folder)) >= 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(StoppedError):
        run_jobs(asked, 3, launcher, Silent(), stop)
    assert cluster.jobs() == ["1_0", "1_1", "1_2"]
    assert all(cluster.is_over(job) for job in cluster.jobs())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--on", "slurm", "--shard", "1/2"], "ccl: --on slurm shares the parts out itself, into as many shares as"),
        (["--slurm", "--time=5"], "ccl: --slurm belongs to --on slurm; add that, or leave --slurm out"),
        (["--detach"], "ccl: --detach belongs to --on slurm"),
        (["--jobs", "4"], "ccl: --jobs belongs to --on slurm"),
        (["--on", "slrm"], "ccl: --on 'slrm'; did you mean 'slurm'?"),
        (["--on", "slurm", "-o", "features.npz"], "ccl: features.npz: with --shard or --on slurm features are"),
        (["--on", "slurm", "--slurm", "--array=0-3"], "ccl: --slurm: ccl sets --array itself; leave it out"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_made(
    command: Command, cluster: SlurmStandIn, shards: str, tmp_path: Path, words: list[str], expected: str
) -> None:
    code, told, error = command("encode", "enc", shards, "-o", "features", *words)
    assert (code, told, len(error.splitlines())) == (2, "", 1)
    assert error.startswith(expected)
    assert cluster.calls("sbatch") == []
    assert not (tmp_path / "features").exists()


def test_what_sbatch_refuses_is_reported_before_images_are_looked_for(
    command: Command, cluster: SlurmStandIn, tmp_path: Path
) -> None:
    cluster.mark("refuse", "invalid partition specified: gpuu")
    shutil.rmtree(tmp_path / "in")
    code, _, error = command(*encode("shards:in/s-{0..1}.tar", "--slurm", "--partition=gpuu"))
    assert (code, error) == (2, "ccl: --on slurm: sbatch: invalid partition specified: gpuu\n")
    assert not (tmp_path / "features").exists()


def test_a_machine_without_slurm(
    command: Command, shards: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, error = command(*encode(shards))
    assert code == 2
    assert error.startswith("ccl: --on slurm: there is no sbatch on this machine")


def test_inputs_are_named_for_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/a")
    assert {text: absolute_input(text) for text in ("photos", "~/photos", "/photos/*.png")} == {
        "photos": f"{tmp_path}/photos",
        "~/photos": "/home/a/photos",
        "/photos/*.png": "/photos/*.png",
    }
    kept = ("shards:s3://bucket/{a,b}.tar", "shards:/x/*.tar", "shards:{/a,/b}/x.tar")
    assert tuple(map(absolute_input, kept)) == kept
    assert absolute_input("shards:{a,b}/x.tar") == f"shards:{tmp_path}/{{a,b}}/x.tar"
