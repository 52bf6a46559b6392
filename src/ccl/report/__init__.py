"""What a run leaves for people: its folder, tables, figures and one self-contained page."""

from ccl.report.run_folder import Log, RunLog, RunRecord, read_run

__all__ = ["Log", "RunLog", "RunRecord", "read_run"]
