"""What a run tells: its folder, tables, pictures and one self-contained page."""

from ccl.report.run_folder import RunLog, RunRecord, read_run

__all__ = ["RunLog", "RunRecord", "read_run"]
