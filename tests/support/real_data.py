"""Data sets that are not in the repository, where this machine has them."""

import os
from pathlib import Path

import pytest


def root_with(folder: str) -> Path:
    """The data root; skips where it has no such folder."""
    root = Path(os.environ.get("CCL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    if not (root / folder).is_dir():
        pytest.skip(f"{folder} is not below CCL_DATA")
    return root
