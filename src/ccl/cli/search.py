"""`ccl search`: the images most like others."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER, MAX_BAD, VERSION


def search(
    state: Path = ENCODER,
    query: str = typer.Argument(metavar="QUERY", help="An image, or a folder of some."),
    images: list[str] = typer.Argument(None, metavar="[IMAGES…]", help="Where to search: images, folders, archives."),
    out: Path = typer.Option(..., "--out", "-o", help="The sheet to look at: .html."),
    k: int = typer.Option(10, "-k", min=1, max=200, help="How many for each query."),
    features: Path | None = typer.Option(
        None,
        "--features",
        "-f",
        help="Search here instead: what ccl encode wrote, so that images are read once.",
    ),
    max_bad: float = MAX_BAD,
    version: int | None = VERSION,
) -> None:
    """Find the images that are most like the query, and write a sheet of them to look at.

    Example: ccl search my-encoder query.jpg photos/ -k 10 -o search.html
    """
    from rich.console import Console

    from ccl.cli.image_input import found, read, report_left_out
    from ccl.continual_encoder.frozen import frozen
    from ccl.continual_encoder.searching import (
        Collection,
        check_sheet_size,
        check_sheet_target,
        find,
        stored_collection,
        write_sheet,
    )
    from ccl.errors import UserError, counted
    from ccl.runs.display import note

    if bool(images) == (features is not None):
        raise UserError("name where to search: either IMAGES or --features FILE.npz")
    check_sheet_target(out)
    console, encoder = Console(), frozen(state, version)
    with found([query], console) as named:
        asked = read(encoder, named, console, out, max_bad)
        report_left_out(asked.skipped, console)
        check_sheet_size(len(asked.rows), k)
        queries = Collection(asked.rows, asked.names, asked.source.encoded)
        if features is not None:
            answers = find(queries, stored_collection(features, encoder), k)
        else:
            with found(images, console) as named:
                there = read(encoder, named, console, out, max_bad)
                report_left_out(there.skipped, console)
                answers = find(queries, Collection(there.rows, there.names, there.source.encoded), k)
        write_sheet(out, answers, f"Most like {Path(query).name}, by version {encoder.version}")
    missing = sum(image.content is None for answer in answers for image, _ in answer.hits)
    if missing:
        gone = f"{counted(missing, 'image')} can't be found where {features} says"
        note(console, f"{gone}; run this in the folder where it was made")
    note(console, f"the sheet to look at: {out}")
