"""Features made by jobs of a real Slurm of two nodes: cancelled, killed and resumed, they are those of one process."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from drops import TINY
from made_shards import png, write_tar
from PIL import Image
from real_slurm import RealSlurm, wait_until, why_not

from ccl import ContinualEncoder
from ccl.continual_encoder.feature_parts import part_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

HANG = 300  # seconds: what nothing here comes near
NUM_PARTS = 80


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    made = RealSlurm(tmp_path_factory.mktemp("slurm") / "here")
    print(f"Slurm took jobs after {made.start():.1f} s")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder of two versions, and 1,600 images in two shards, one of which is not usable."""
    folder = tmp_path_factory.mktemp("encode")
    for week in range(2):
        drop = folder / f"week-{week}"
        drop.mkdir()
        for number in range(30):
            (drop / f"{number}.png").write_bytes(png(10_000 * (week + 1) + number))
        if week == 0:
            encoder = ContinualEncoder.create(folder / "encoder", **TINY)
        encoder.learn(drop)
    pictures = [large_png(number) for number in range(31)]
    for shard in range(2):
        numbers = range(shard * 800, (shard + 1) * 800)
        files = {f"{number:04d}.png": b"<html>" if number == 33 else pictures[number % 31] for number in numbers}
        write_tar(folder / "in" / f"s-{shard}.tar", files)
    return folder


def large_png(seed: int) -> bytes:
    """Slow enough to decode that a share of the parts lasts for seconds, and can be met in its middle."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png(seed))).resize((480, 480), Image.Resampling.NEAREST).save(buffer, format="PNG")
    return buffer.getvalue()


class Encode:
    """`ccl encode encoder shards:… -o OUT` as a process in the folder, with the words it has written so far."""

    def __init__(self, cluster: RealSlurm, here: Path, out: str, *arguments: str) -> None:
        self.began, self._words = time.monotonic(), here / f"{out}.{time.time_ns()}.txt"
        words = [sys.executable, "-m", "ccl", "encode", "encoder", "shards:in/s-{0..1}.tar", "-o", out]
        environment = cluster.environment | {"OMP_NUM_THREADS": "1"}
        with self._words.open("wb") as output:
            self.process = subprocess.Popen(
                [*words, "--part-images=20", *arguments],
                cwd=here,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def words(self) -> str:
        return self._words.read_text()

    def finish(self, exit_code: int = 0) -> str:
        self.process.wait(HANG)
        print(f"{time.monotonic() - self.began:.1f} s:", *self.process.args[4:])  # type: ignore[index]
        assert self.process.returncode == exit_code, self.words()
        return self.words()


SLURM = ["--on=slurm", "--slurm=--cpus-per-task=1 --time=10", "--jobs=4"]


def is_in_the_middle(out: Path, share: int, of: int) -> bool:
    """Whether the share, counted from 0, has some of its parts and not all."""
    there = [part_path(out, number).exists() for number in range(share, NUM_PARTS, of)]
    return any(there) and not all(there)


def job_of(out: Path) -> str:
    """The id of the array."""
    [record] = (out / "slurm").glob("ccl-*.json")
    return record.read_text().split('"job": "')[1].split('"')[0]


def parts(folder: Path) -> dict[str, dict[str, bytes]]:
    """The content of every part, array by array; of the paths of images what is behind the folder."""
    found = {}
    for path in sorted(folder.glob("part-*.npz")):
        with np.load(path) as part:
            found[path.name] = {name: part[name].tobytes() for name in part.files if name != "paths"}
            found[path.name]["keys"] = repr([name.rpartition("in/")[2] for name in part["paths"]]).encode()
    return found


def test_one_job_cancelled_and_one_killed_the_same_command_comes_to_the_same_bits(
    cluster: RealSlurm, here: Path
) -> None:
    Encode(cluster, here, "local", "--shard=1/1").finish()
    out = here / "features"
    command = Encode(cluster, here, "features", *SLURM)
    wait_until(lambda: is_in_the_middle(out, 0, 4) and is_in_the_middle(out, 1, 4), HANG, "they are not in the middle")
    cluster.run("scancel", f"{job_of(out)}_0")
    cluster.run("scancel", "--signal=KILL", "--full", f"{job_of(out)}_1")
    words = command.finish(1)
    assert f"Slurm job {job_of(out)}_0 ended as CANCELLED" in words
    assert "ccl: 2 of 4 jobs failed; the same command tries them again" in words
    assert cluster.alive() == []
    done = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*.npz")}
    assert NUM_PARTS / 2 < len(done) < NUM_PARTS

    # A version that lands in the meantime changes nothing: the folder has its own, which is asked for.
    words = Encode(cluster, here, "features", *SLURM).finish()
    assert f"{NUM_PARTS} of {NUM_PARTS} parts are done: features" in words
    assert f"{NUM_PARTS - len(done)} parts with" in words
    assert {name: (out / name).stat().st_mtime_ns for name in done} == done
    assert parts(out) == parts(here / "local")
    assert (out / "part-000001.bad_images.csv").exists()


def test_ctrl_c_leaves_no_job_and_a_killed_command_finds_its_own(cluster: RealSlurm, here: Path) -> None:
    out, before = here / "stopped", set(cluster.states())
    command = Encode(cluster, here, "stopped", *SLURM)
    wait_until(lambda: is_in_the_middle(out, 0, 4), HANG, "share 1 does not begin")
    command.process.send_signal(signal.SIGINT)
    asked_at = time.monotonic()
    assert "runs under way save their state and end: 4" in command.finish(130)
    print(f"4 jobs were gone {time.monotonic() - asked_at:.1f} s after Ctrl-C")
    assert cluster.alive() == []

    # Held back until a third command has found them, however long that takes to start.
    cluster.run("scontrol", "update", "partitionname=main", "state=down")
    try:
        command = Encode(cluster, here, "stopped", *SLURM)
        wait_until(lambda: len(cluster.alive()) == 4, HANG, "nothing is submitted")
        command.process.kill()
        command.process.wait()
        # Another number of jobs does not matter while those of before are under way.
        command = Encode(cluster, here, "stopped", "--on=slurm", "--jobs=2")
        wait_until(lambda: "jobs of 4 shares are under way" in command.words(), HANG, "they are not found")
    finally:
        cluster.run("scontrol", "update", "partitionname=main", "state=up")
    command.finish()
    assert len(set(cluster.states()) - before) == 8
    assert parts(out) == parts(here / "local")


def test_a_new_version_that_lands_meanwhile_is_not_mixed_in(cluster: RealSlurm, here: Path) -> None:
    out = here / "pinned"
    cluster.run("scontrol", "update", "partitionname=main", "state=down")
    try:
        Encode(cluster, here, "pinned", *SLURM, "--detach").finish()
        ContinualEncoder.open(here / "encoder").rollback(1)
    finally:
        cluster.run("scontrol", "update", "partitionname=main", "state=up")
    wait_until(lambda: not cluster.alive(), HANG, "the jobs do not end")
    assert parts(out) == parts(here / "local")


def test_what_slurm_refuses_is_one_line_and_leaves_nothing(cluster: RealSlurm, here: Path) -> None:
    words = Encode(cluster, here, "refused", "--on=slurm", "--slurm=--partition=gpuu").finish(2)
    expected = "sbatch: invalid partition specified: gpuu; Invalid partition name specified"
    assert words == f"ccl: --on slurm: {expected}\n"
    assert not os.path.lexists(here / "refused")
