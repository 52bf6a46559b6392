"""What a run leaves for people: its folder, tables, figures and one self-contained page."""

from ccl.report.run_folder import RunLog, RunRecord, read_run

__all__ = ["RunLog", "RunRecord", "read_run"]
