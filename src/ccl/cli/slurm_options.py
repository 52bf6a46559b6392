"""The words of --slurm: options of sbatch."""

import re
import shlex
import shutil

from ccl.errors import UserError

# What `ccl.runs.slurm` sets, and what would keep sbatch from submitting.
_OURS = re.compile(
    "--(array|output|error|input|job-name|parsable|wrap|wait|test-only|open-mode)(=.*)?|-[aoeiJW].*", re.DOTALL
)
_PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")  # what `ccl.runs.slurm_commands` and a job call


def sbatch_options(text: str | None) -> list[str]:
    """The options one by one; refuses those that ccl sets itself, and a machine without Slurm."""
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise UserError(f"--slurm {text!r}: {str(error).lower()}") from None
    for word in words:
        if _OURS.fullmatch(word):
            raise UserError(f"--slurm: ccl sets {word.partition('=')[0]} itself; leave it out")
    for name in _PROGRAMS:
        if shutil.which(name) is None:
            raise UserError(f"--on slurm: there is no {name} on this machine; start it on a login node of the cluster")
    return words
