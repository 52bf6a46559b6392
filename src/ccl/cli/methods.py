"""`ccl methods`: every strategy and every part there is, from the catalogue alone."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from ccl.strategies import Strategy

# What is listed, in this order, and the setting that takes a name of it.
KINDS = {
    "strategies": "strategy",
    "objectives": "objective",
    "retention": "retention",
    "compositions": "composition",
    "weight_rules": "weight_rule",
    "selections": "memory.selection",
}


def methods(
    kind: str | None = typer.Argument(None, metavar="[KIND]", help=f"Only these: {', '.join(KINDS)}."),
) -> None:
    """List the methods: strategies, what they are made of, and where each was published.

    Any strategy takes another objective, composition, weight rule or selection, and other parts that keep the past, as
    far as they go together.

    Example: ccl methods selections
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ccl.errors import UserError, did_you_mean

    if kind is not None and kind not in KINDS:
        raise UserError(f"unknown kind {kind!r}{did_you_mean(kind, KINDS)}")
    console = Console()
    for name in KINDS if kind is None else [kind]:
        console.print(Text(f"{name.replace('_', ' ').capitalize()}  --set {KINDS[name]}=NAME", style="bold"))
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column()
        for own, text in _rows(name).items():
            table.add_row(Text(f"  {own}"), text)
        console.print(table)
        console.print()


def _rows(kind: str) -> "dict[str, Text]":
    from ccl import catalogue
    from ccl.strategies import STRATEGIES

    if kind == "strategies":
        return {
            name: _entry(row.title, row.about, [*strategy_facts(row), row.source]) for name, row in STRATEGIES.items()
        }
    rows: dict[str, catalogue.PartRow] = getattr(catalogue, kind.upper())
    found = {}
    for name, row in rows.items():
        needs = f"needs {' and '.join(sorted(row.needs))}" if row.needs else ""
        weight = f"weight {row.weight:g}" if kind == "retention" else ""
        found[name] = _entry(row.title, row.about, [needs, weight, row.source])
    return found


def strategy_facts(row: "Strategy") -> list[str]:
    """What a strategy keeps, and its parts by their titles."""
    from ccl.catalogue import title_of

    kept = f"keeps images: {title_of(row.selection)}" if row.selection else "keeps no images"
    parts = [title_of(name) for name in (*row.retention, *([row.weight_rule] if row.weight_rule else []))]
    composition = [] if row.composition == "pooled" else [title_of(row.composition)]
    at_once = ["the whole stream at once"] if row.all_at_once else []
    return [kept, " + ".join([*parts, *composition, *at_once])]


def _entry(title: str, about: str, facts: list[str]) -> "Text":
    from rich.text import Text

    text = Text(f"{title}: {about}" if about else title)
    known = " · ".join(fact for fact in facts if fact)
    return text.append(f"\n{known}", style="dim") if known else text
