"""Which classes of one's own may be imported: settings in a folder may come from a stranger, and importing runs code.

A class is imported if the command line or the calling program names it, or if the folder that names it is trusted. That
is remembered in the user's configuration, by the folder's identity and the classes together, so that a folder that
names another class later is asked for again.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccl.atomic_files import write_file
from ccl.catalogue import UNTRUSTED, own_classes, spelled

_named: set[str] = set()  # by who calls, or by folders that are trusted
_trusted: set[Path] = set()  # folders, with all below


def trust(folder: str | Path) -> None:
    """Let the settings in a folder, and in those below it, name classes to be imported; remembered once they are read.

    >>> ccl.trust("my-encoder")
    """
    _trusted.add(Path(folder).resolve())


def named(values: Mapping[str, Any]) -> None:
    """Settings that the user or the calling program gives: the classes that they name may be imported."""
    _allow(_class_paths(values))


def read_from(folder: Path, values: Mapping[str, Any], identity: str = "") -> None:
    """Settings that stand in a folder: the classes that they name are not imported unless it is trusted.

    It is from now on where this process may import them all, as the one that made it may.
    """
    if not (paths := _class_paths(values)):
        return
    key, found = str(identity or folder.resolve()), _remembered()
    if any(folder.resolve().is_relative_to(one) for one in _trusted):
        _allow(paths)
    _allow(paths & {*found.get(key, [])})
    if strange := paths - _named:
        UNTRUSTED.update(dict.fromkeys(strange, str(folder)))
    elif not paths <= {*found.get(key, [])}:
        try:
            write_file(_file(), json.dumps({**found, key: sorted(paths.union(found.get(key, [])))}, indent=1))
        except (OSError, RuntimeError):  # a home that can't be written, or none: it is asked for again
            return


def _class_paths(values: Mapping[str, Any]) -> set[str]:
    return {spelled(path) for _, path in own_classes(values)}


def _allow(paths: set[str]) -> None:
    _named.update(paths)
    for path in paths:
        UNTRUSTED.pop(path, None)


def _file() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(os.environ.get("CCL_CONFIG") or Path(config) / "ccl") / "trusted.json"


def _remembered() -> dict[str, list[str]]:
    """Classes by folders."""
    try:
        found = json.loads(_file().read_bytes())
        return {key: [str(path) for path in paths] for key, paths in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, RuntimeError):  # it is asked for again
        return {}
