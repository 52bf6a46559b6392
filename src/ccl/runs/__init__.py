"""One run: from settings to a finished run folder, however often it is interrupted."""

from ccl.runs.run import run

__all__ = ["run"]
