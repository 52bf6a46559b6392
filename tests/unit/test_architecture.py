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
    ["errors", "atomic_files", "sealed_json", "settings_files"],
    ["section", "seeding", "catalogue", "trusted_classes", "ranks"],
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


# Ceilings only go down: who adds lines removes others, or says in the commit why the house must grow.
CEILINGS = {"lines": 23_400, "files": 182, "lines of tests": 28_400}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_the_house_stays_small() -> None:
    source, tests = sorted((ROOT / "src").rglob("*.py")), sorted((ROOT / "tests").rglob("*.py"))
    found = {"lines": sum(map(lines, source)), "files": len(source), "lines of tests": sum(map(lines, tests))}
    assert {name: size for name, size in found.items() if size > CEILINGS[name]} == {}


def instructions(module: Path) -> int:
    """Lines of the bodies in a module, without docstrings, signatures and imports."""
    total = 0
    for node in ast.parse(module.read_text()).body:
        body = getattr(node, "body", [node])[bool(isinstance(node, ast.FunctionDef) and ast.get_docstring(node)) :]
        if body and not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr | ast.If):
            total += (node.end_lineno or 0) - body[0].lineno + 1
    return total


def test_commands_only_parse_and_print() -> None:
    commands = [
        path for path in (PACKAGE / "cli").glob("*.py") if path.stem in importlib.import_module("ccl.cli.app").__dict__
    ]
    assert len(commands) >= 14
    assert {path.stem: size for path in commands if (size := instructions(path)) > 60} == {}


def defining(module: str, name: str) -> str:
    """The module that a name comes from, through the packages that pass it on."""
    if f"{module}.{name}" in BY_NAME:
        return f"{module}.{name}"
    path = BY_NAME.get(module)
    if path is not None and path.stem == "__init__":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ccl"):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return defining(str(node.module), alias.name)
    return module


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


BY_NAME = {dotted(path): path for path in PACKAGE.rglob("*.py")}
# Parts, commands and formulas may be as small as they are,
MAY_BE_SMALL = {"objectives", "retention", "composition", "weight_rules", "losses", "cli", "__main__"}
# a baseline's formula, the paper's tables beside their data, and a public class whose base takes a second to import.
SMALL = {
    "ccl.sealed_json",
    "ccl.evaluation.baseline_features",
    "ccl.report.paper_artefacts",
    "ccl.continual_encoder.transformer",
}


def test_a_small_module_has_more_than_one_importer() -> None:
    importers: dict[str, set[str]] = {name: set() for name in BY_NAME}
    for module, path in BY_NAME.items():
        if path.stem != "__init__":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ccl"):
                    for alias in node.names:
                        importers[defining(str(node.module), alias.name)].add(module)
    rows = re.findall(r'"(ccl\.[\w.]+):', "".join(path.read_text() for path in MODULES))  # parts that are named by path
    small = [
        path for path in MODULES if path.stem != "__init__" and lines(path) < 60 and home(path) not in MAY_BE_SMALL
    ]
    found = {dotted(path) for path in small if len(importers[dotted(path)]) < 2}
    assert found - SMALL - set(rows) == set()


def test_no_unsafe_calls() -> None:
    unsafe = re.compile(
        r"pickle\.loads?\(|yaml\.load\(|(?<![.\w])(eval|exec)\(|weights_only=False|allow_pickle=True|shell=True"
    )
    assert unsafe.search("x = eval(y)")
    assert [path for path in MODULES if unsafe.search(path.read_text())] == []


def test_nothing_is_printed_raw() -> None:
    """Lines reach a terminal by `ccl.errors.printable`: here, and where rich shows them."""
    raw = re.compile(r"(?<![.\w])print\(|typer\.echo\(|sys\.std(out|err)\.write")
    found = {str(path.relative_to(PACKAGE)) for path in MODULES if raw.search(path.read_text())}
    # An example in a docstring; JSON, which has escapes of its own.
    assert found == {"cli/__init__.py", "cli/options.py", "errors.py", "cli/status.py"}


def test_files_are_renamed_and_synced_in_one_place() -> None:
    """So that nothing is written aside without being on the disk before it has its name."""
    by_hand = re.compile(r"os\.(replace|fsync)\(")
    assert by_hand.search((PACKAGE / "atomic_files.py").read_text())
    found = {str(path.relative_to(PACKAGE)) for path in MODULES if by_hand.search(path.read_text())}
    assert found == {"atomic_files.py"}
    # What writes otherwise writes into a file or folder that is renamed later.
    by_hand = re.compile(r"\.write_(text|bytes)\(|\.open\(\"w")
    found = {path.stem for path in MODULES if by_hand.search(path.read_text())}
    assert found <= {"accuracy_matrix", "atomic_files", "cifar", "exporting", "feature_files", "searching"}


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
