"""What a run tells: its folder, tables, pictures and one self-contained page."""

from ccl.report.run_folder import CHECKPOINTS, RunLog, RunRecord, read_run

__all__ = ["CHECKPOINTS", "RunLog", "RunRecord", "read_run"]
