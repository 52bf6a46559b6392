"""A real Slurm on this machine, as root, in a folder of its own: virtual nodes, no cgroups, no accounting, no systemd.

Debian's packages slurmctld, slurmd, slurm-client and munge are all it needs; nothing of the system is touched.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
_PATH = f"{os.environ['PATH']}:/usr/sbin"

CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout=10
ReturnToService=2
MpiDefault=none
MaxJobCount=10000
MinJobAge=3600
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why there can be no Slurm here, None where it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        packages = "slurmctld slurmd slurm-client munge"
        return f"{missing[0]} is not installed (apt-get install -y --no-install-recommends {packages})"
    return None if os.geteuid() == 0 else "a Slurm of its own needs root"


class RealSlurm:
    """A controller and nodes n1 and n2; commands find it by `environment`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes = folder, ["n1", "n2"]
        self.conf = folder / "slurm.conf"
        self.environment = os.environ | {"SLURM_CONF": str(self.conf)}
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)  # munge asks for that
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        ports = free_ports(3)
        here = f"NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 CPUs=2"
        lines = [f"NodeName={node} {here} Port={port}" for node, port in zip(self.nodes, ports[1:], strict=True)]
        self.conf.write_text(
            CONF.format(host=socket.gethostname(), port=ports[0], folder=folder, nodes="\n".join(lines))
        )

    def start(self) -> None:
        """Until all nodes take jobs."""
        files = {"key": "munge.key", "socket": "munge.sock", "pid": "munged.pid", "log": "munged.log", "seed": "seed"}
        options = [f"--{name}-file={self.folder / file}" for name, file in files.items() if name != "socket"]
        self.run("munged", "--force", f"--socket={self.folder / 'munge.sock'}", *options)
        self.run("slurmctld", "-f", str(self.conf))
        for node in self.nodes:
            self.start_node(node)
        wait_until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(len(self.nodes)), 60)

    def start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        self.run("slurmd", "-f", str(self.conf), "-N", node)

    def stop(self) -> None:
        """All daemons and all jobs, by their ids."""
        for node in self.nodes:
            self.kill_node(node)
        self._kill(b"SLURM_CONF=")
        for file in self.folder.glob("*.pid"):
            _kill_daemon(file)

    def kill_node(self, node: str) -> None:
        """As a power cut would: its daemon and every process of its jobs, at once."""
        _kill_daemon(self.folder / f"slurmd-{node}.pid")
        log = str(self.folder / f"slurmd-{node}.log")  # which the node's own slurmstepd have open, and no other's
        for process in _processes():
            if _read(process, "cmdline").startswith(b"slurmstepd: ") and log in _open_files(process):
                _kill_process(process)
        self._kill(b"SLURMD_NODENAME=" + node.encode() + b"\0")

    def states(self) -> dict[str, str]:
        """Of all jobs, by id."""
        lines = self.run("squeue", "-h", "--array", "--states=all", "-o", "%i %T").splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}

    def alive(self) -> list[str]:
        words = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"}
        return [job for job, state in self.states().items() if state in words]

    def run(self, *words: str) -> str:
        """The answer of a command."""
        program = shutil.which(words[0], path=_PATH)
        assert program is not None
        answer = subprocess.run([program, *words[1:]], env=self.environment, capture_output=True, text=True, timeout=60)
        return answer.stdout

    def _kill(self, entry: bytes) -> None:
        """Every process of this Slurm with an entry in its environment that begins like that."""
        own = b"\0SLURM_CONF=" + os.fsencode(self.conf) + b"\0"
        for process in _processes():
            environment = b"\0" + _read(process, "environ")
            if own in environment and b"\0" + entry in environment:
                _kill_process(process)


def _kill_daemon(file: Path) -> None:
    if file.exists():
        _kill_process(int(file.read_text()))
        file.unlink()  # the number may soon be another process's


def _kill_process(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _read(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


def _open_files(process: int) -> list[str]:
    try:
        return [os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir()]
    except OSError:
        return []


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_until(is_so: Callable[[], object], seconds: float, what: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"not so after {seconds} seconds: {what}")
        time.sleep(0.2)
