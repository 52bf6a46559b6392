"""The notebooks: the code of their cells runs in order, and they hold no output of somebody's machine."""

import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from doc_blocks import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_holds_code_and_no_outputs(path: Path) -> None:
    for number, cell in enumerate(cells(path)):
        compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec")
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


def test_there_are_two() -> None:
    assert [path.name for path in NOTEBOOKS] == ["compare_methods.ipynb", "keep_up.ipynb"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_cell_runs_in_order(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    for number, cell in enumerate(cells(path)):
        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), known)
