"""`ccl methods`: every strategy and every part there is, from the catalogue alone."""

from collections.abc import Iterator

import typer

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
        for own, text, facts in _rows(name):
            known = " · ".join(fact for fact in facts if fact)
            table.add_row(Text(f"  {own}"), Text(text).append(f"\n{known}", style="dim"))
        console.print(table)
        console.print()


def _rows(kind: str) -> Iterator[tuple[str, str, list[str]]]:
    """Name, what it is, and what is known of it."""
    from ccl import catalogue
    from ccl.catalogue import title_of
    from ccl.strategies import STRATEGIES, strategy_title

    if kind != "strategies":
        rows: dict[str, catalogue.PartRow] = getattr(catalogue, kind.upper())
        for name, row in rows.items():
            needs = f"needs {' and '.join(sorted(row.needs))}" if row.needs else ""
            weight = f"weight {row.weight:g}" if kind == "retention" else ""
            yield name, f"{row.title}: {row.about}", [needs, weight, row.source]
        return
    for name, strategy in STRATEGIES.items():
        kept = f"keeps images: {title_of(strategy.selection)}" if strategy.selection else "keeps no images"
        rule = [strategy.weight_rule] if strategy.weight_rule else []
        mixed = [] if strategy.composition == "pooled" else [strategy.composition]
        parts = [title_of(part) for part in (*strategy.retention, *rule, *mixed)]
        parts += ["the whole stream at once"] if strategy.all_at_once else []
        yield name, f"{strategy_title(name)}: {strategy.about}", [kept, " + ".join(parts), strategy.source]
