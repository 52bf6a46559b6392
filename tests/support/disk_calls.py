"""What is synced and renamed, in its order."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def hear_of_disk_calls(patch: pytest.MonkeyPatch, note: Callable[[str, Path, int], None]) -> None:
    """`note` hears of every fsync (of which path) and rename (to which path) before it is made, and of the size."""

    def size(path: Path) -> int:
        return path.stat().st_size if path.is_file() else 0

    def noted_sync(handle: int, sync: Callable[[int], None] = os.fsync) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        note("fsync", path, size(path))
        sync(handle)

    def noted(move: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def call(old: Path, new: Path) -> None:
            note("replace", Path(new).absolute(), size(Path(old)))
            move(old, new)

        return call

    patch.setattr(os, "fsync", noted_sync)
    for name in ("rename", "replace"):
        patch.setattr(os, name, noted(getattr(os, name)))
