"""`ccl methods`: all rows of the catalogue, without torch."""

import pytest
from typer.testing import CliRunner

from ccl.catalogue import COMPOSITIONS, OBJECTIVES, RETENTION, SELECTIONS, WEIGHT_RULES
from ccl.cli.app import app
from ccl.cli.methods import KINDS
from ccl.errors import UserError
from ccl.loading import setting_names
from ccl.strategies import STRATEGIES

TABLES = (STRATEGIES, OBJECTIVES, RETENTION, COMPOSITIONS, WEIGHT_RULES, SELECTIONS)


def listed(*arguments: str) -> str:
    answer = CliRunner().invoke(app, ["methods", *arguments], env={"COLUMNS": "200"})
    assert answer.exit_code == 0, answer.output
    return str(answer.output)


def names(text: str) -> list[str]:
    """First words of the lines that begin an entry."""
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line[2] != " "]


def test_every_row_is_listed_once_in_its_order() -> None:
    assert names(listed()) == [name for table in TABLES for name in table]


@pytest.mark.parametrize(("kind", "table"), list(zip(KINDS, TABLES, strict=True)), ids=list(KINDS))
def test_one_kind_alone(kind: str, table: dict[str, object]) -> None:
    text = listed(kind)
    assert names(text) == list(table)
    assert f"--set {KINDS[kind]}=NAME" in text
    assert KINDS[kind] in setting_names()


@pytest.mark.parametrize("table", TABLES, ids=list(KINDS))
def test_every_row_has_a_line_about_it_and_a_source(table: dict[str, object]) -> None:
    assert [name for name, row in table.items() if not row.about or not row.source] == []  # type: ignore[attr-defined]


def test_an_unknown_kind_gets_one_line() -> None:
    answer = CliRunner().invoke(app, ["methods", "selection"])
    assert isinstance(answer.exception, UserError)
    assert str(answer.exception) == "unknown kind 'selection'; did you mean 'selections'?"
