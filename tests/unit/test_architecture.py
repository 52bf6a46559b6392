"""Folders are the pipeline: imports point upstream only, and every concept of the paper has its home."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "ccl"

# Upstream first. A module may import from its own layer and from those before it.
LAYERS = [
    ["errors", "atomic_files", "settings_files"],
    ["section", "seeding", "catalogue", "ranks"],
    ["strategies"],
    ["data"],
    ["views"],
    ["encoders"],
    ["losses"],
    ["memory"],
    ["part"],
    ["composition"],
    ["objectives"],
    ["retention"],
    ["weight_rules"],
    ["training"],
    ["reading"],
    ["evaluation"],
    ["settings"],
    ["loading"],
    ["runs"],
    ["report"],
    ["continual_encoder"],
    ["cli", "__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Parts take plain keyword arguments: only the edge knows settings.
KNOWS_SETTINGS = {name for names in LAYERS[LEVEL["runs"] :] for name in names} | {"settings", "loading"}


def home(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """First names below ccl that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ccl":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("ccl.")}
    return found


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_upstream(path: Path) -> None:
    mine = home(path)
    for other in imported(path):
        assert LEVEL[other] <= LEVEL[mine], f"{mine} imports {other}, which lies downstream"
        assert other not in ("settings", "loading") or mine in KNOWS_SETTINGS, f"{mine} must not know settings"


def test_no_module_is_a_drawer_for_everything() -> None:
    assert not [path for path in MODULES if path.stem in ("utils", "helpers", "common", "misc")]


def test_no_unsafe_calls() -> None:
    unsafe = re.compile(
        r"pickle\.loads?\(|yaml\.load\(|(?<![.\w])(eval|exec)\(|weights_only=False|allow_pickle=True|shell=True"
    )
    assert unsafe.search("x = eval(y)")
    assert [path for path in MODULES if unsafe.search(path.read_text())] == []


def test_files_are_renamed_and_synced_in_one_place() -> None:
    """So that nothing is written aside without being on the disk before it has its name."""
    by_hand = re.compile(r"os\.(replace|fsync)\(")
    assert by_hand.search((PACKAGE / "atomic_files.py").read_text())
    found = {str(path.relative_to(PACKAGE)) for path in MODULES if by_hand.search(path.read_text())}
    assert found == {"atomic_files.py"}
    # What writes otherwise writes into a file or folder that is renamed later.
    by_hand = re.compile(r"\.write_(text|bytes)\(|\.open\(\"w")
    found = {path.stem for path in MODULES if by_hand.search(path.read_text())}
    assert found <= {"accuracy_matrix", "atomic_files", "cifar", "exporting", "features", "rehearsal", "searching"}


def symbols() -> list[str]:
    return sorted(set(re.findall(r"`(ccl\.[A-Za-z0-9_.]+)`", (ROOT / "docs" / "paper_map.md").read_text())))


@pytest.mark.parametrize("symbol", symbols())
def test_every_symbol_of_the_paper_map_exists(symbol: str) -> None:
    module, _, name = symbol.rpartition(".")
    try:
        assert hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        owner, _, attribute = module.rpartition(".")
        assert hasattr(getattr(importlib.import_module(owner), attribute), name)


def test_the_paper_map_is_not_empty() -> None:
    assert len(symbols()) > 20
