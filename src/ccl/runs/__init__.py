"""One run: from settings to a finished run folder, however often it is interrupted."""

from ccl.runs.run import run as run
