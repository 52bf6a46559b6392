"""Who holds a folder, in words."""

import json
from pathlib import Path

import pytest

from ccl.errors import UserError
from ccl.runs.folder_lock import locked
from ccl.runs.run_folder import STATUS


def test_the_holder_is_named_as_far_as_it_is_known(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder):
        with pytest.raises(UserError, match="is in use by another process, which has just begun; wait"), locked(folder):
            pass
        (folder / STATUS).write_text(json.dumps({"state": "running", "pid": 17, "host": "here"}))
        (folder / "settings.yaml").write_text("")
        with pytest.raises(UserError, match="is in use by process 17 on here; wait"), locked(folder):
            pass


def test_what_a_process_killed_at_its_start_leaves_is_no_other_file(tmp_path: Path) -> None:
    (tmp_path / ".settings.0a1b.part.yaml").touch()
    with locked(tmp_path):
        pass
