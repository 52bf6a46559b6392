"""The memory that this process holds."""

import ctypes
import sys
from pathlib import Path


def peak_memory() -> int:
    """The most memory this process has held, in bytes; 0 where the system does not report it."""
    try:
        # Linux: getrusage reports at least what the parent held when it started this process.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)


def give_back() -> None:
    """Return freed memory to the system, where it has a call for that (glibc); takes some milliseconds.

    Tensors of ever other sizes leave holes in the heap that glibc keeps: after five steps of CIFAR-100 they were as
    large as all that was in use.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
