"""What a run tells: its folder, tables, pictures and one self-contained page."""

from ccl.report.run_folder import Log, RunLog, RunRecord, read_run

__all__ = ["Log", "RunLog", "RunRecord", "read_run"]
