"""Quick stand-ins for sbatch, squeue, scancel and scontrol, as far as ccl calls them: jobs are processes of this host.

`reliability/test_slurm.py` has a real Slurm. As there, cancelling and requeuing send SIGTERM to every process of a job,
an array has one job for each index.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

# Called by the four names. Files in its folder steer it: `hold` keeps jobs pending, `limit` is the most that may be
# under way, `refuse` the words of a refusal, `down` the words of a controller that does not answer.
STAND_IN = r"""#!{python} -S
import json, os, signal, subprocess, sys
here = os.path.dirname(os.path.abspath(__file__))
command, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(os.path.join(here, "calls.txt"), "a") as file:
    file.write(json.dumps([command, *words]) + "\n")
def read(name):
    path = os.path.join(here, name)
    return open(path).read() if os.path.exists(path) else None
def leave(words):
    sys.exit(print(f"{{command}}: error: {{words}}", file=sys.stderr) or 1)
def jobs():
    return sorted((name[4:] for name in os.listdir(here) if name.startswith("job-")), key=len)
def state(job):
    if read(f"job-{{job}}/status") is not None:
        return "OVER"
    return "RUNNING" if read(f"job-{{job}}/running") is not None else "PENDING"
def is_over(job):
    return state(job) == "OVER"
def send(job, number, everyone=True):
    pid = int(read(f"job-{{job}}/pid"))
    if state(job) == "PENDING":
        os.killpg(pid, signal.SIGKILL)
        open(os.path.join(here, f"job-{{job}}", "status"), "w").write("0")
    elif everyone:
        os.killpg(pid, number)
    else:
        os.kill(int(read(f"job-{{job}}/script")), number)
if read("down") is not None:
    leave(read("down"))
if command == "sbatch":
    if read("refuse") is not None:
        leave(read("refuse"))
    if "--test-only" in words:
        sys.exit(0)
    options = [word for word in words if word.startswith("-") and "slurm_job.sh" not in word]
    script = words[next(i for i, word in enumerate(words) if word.endswith("slurm_job.sh")):]
    value = dict(word.split("=", 1) for word in options if "=" in word)
    count = 1
    if "--array" in value:
        count = int(value["--array"].split("%")[0].split("-")[1]) + 1
    under_way = sum(not is_over(job) for job in jobs())
    if read("limit") is not None and under_way + count > int(read("limit")):
        leave("Batch job submission failed: Resource temporarily unavailable")
    number = int(read("last") or 0) + 1
    open(os.path.join(here, "last"), "w").write(str(number))
    for index in range(count):
        job = f"{{number}}_{{index}}" if "--array" in value else str(number)
        folder = os.path.join(here, f"job-{{job}}")
        os.makedirs(folder)
        open(os.path.join(folder, "name"), "w").write(value["--job-name"])
        extra = {{"SLURM_ARRAY_TASK_ID": str(index)}} if "--array" in value else {{}}
        runner = subprocess.Popen(
            ["bash", os.path.join(here, "runner.sh"), folder, *script], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={{**os.environ, **extra, "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n1", "SLURM_CPUS_ON_NODE": "3"}})
        open(os.path.join(folder, "pid"), "w").write(str(runner.pid))
    if read("cut_off") is not None:  # the job is submitted, its id never arrives
        leave("Batch job submission failed: Connection reset")
    print(f"{{number}};here")
if command == "squeue":
    for job in jobs():
        if read(f"job-{{job}}/forgotten") is None:
            if not is_over(job):
                print(f"{{job}}|{{state(job)}}|{{read(f'job-{{job}}/name')}}")
if command == "scancel":
    for job in jobs():
        if job.split("_")[0] == words[-1] or job == words[-1]:
            if not is_over(job):
                send(job, signal.SIGTERM)
if command == "scontrol" and words[0] == "requeue":
    open(os.path.join(here, f"job-{{words[1]}}", "requeue"), "w").close()
if command == "scontrol" and words[0] == "show":
    print("MaxArraySize            = " + (read("array") or "1001"))
"""

RUNNER = r"""
FOLDER=$1; shift; HERE=$(dirname "$FOLDER")
trap : TERM
while [ -e "$HERE/hold" ]; do sleep 0.02; done
export SLURM_RESTART_COUNT=0
while :; do
  touch "$FOLDER/running"
  bash "$@" & echo $! > "$FOLDER/script"
  SCRIPT=$!
  wait $SCRIPT; CODE=$?
  while kill -0 $SCRIPT 2>/dev/null; do wait $SCRIPT; CODE=$?; done
  [ -e "$FOLDER/requeue" ] || break
  rm "$FOLDER/requeue"; SLURM_RESTART_COUNT=$((SLURM_RESTART_COUNT + 1))
done
echo $CODE > "$FOLDER/status.part"; mv "$FOLDER/status.part" "$FOLDER/status"
"""


class SlurmStandIn:
    """The commands in a folder that belongs on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "runner.sh").write_text(RUNNER)
        for name in ("sbatch", "squeue", "scancel", "scontrol"):
            (folder / name).write_text(STAND_IN.format(python=sys.executable))
            (folder / name).chmod(0o755)

    def calls(self, command: str) -> list[list[str]]:
        """The words of each call of a command."""
        path = self.folder / "calls.txt"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [words for name, *words in lines if name == command]

    def submissions(self) -> list[list[str]]:
        return [words for words in self.calls("sbatch") if "--test-only" not in words]

    def jobs(self) -> list[str]:
        return sorted(path.name.removeprefix("job-") for path in self.folder.glob("job-*"))

    def is_over(self, job: str) -> bool:
        return (self.folder / f"job-{job}" / "status").exists()

    def is_running(self, job: str) -> bool:
        return (self.folder / f"job-{job}" / "script").exists() and not self.is_over(job)

    def signal(self, job: str, number: int) -> None:
        """To the batch script alone, as --signal=B:… does; one that has just ended hears nothing."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((self.folder / f"job-{job}" / "script").read_text()), number)

    def mark(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    def unmark(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
