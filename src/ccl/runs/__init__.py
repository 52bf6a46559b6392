"""One run: from settings to a finished run folder, however often it is interrupted. And grids of runs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccl.runs.one_run import run as run


def __getattr__(name: str) -> Any:
    """On first use: an encoder folder needs no more of this package than locks and small files."""
    if name == "run":
        from ccl.runs.one_run import run

        return run
    raise AttributeError(f"module 'ccl.runs' has no attribute {name!r}")
