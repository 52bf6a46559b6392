"""`ccl search`: the images most like others."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER, MAX_BAD, TRUST, VERSION


def search(
    folder: Path = ENCODER,
    query: str = typer.Argument(metavar="QUERY", help="An image, or a folder of some."),
    images: list[str] = typer.Argument(None, metavar="[IMAGES…]", help="Where to search: images, folders, archives."),
    out: Path = typer.Option(..., "--out", "-o", help="The sheet to look at: .html."),
    k: int = typer.Option(10, "-k", min=1, max=200, help="How many for each query."),
    features: Path | None = typer.Option(
        None, "--features", "-f", help="Search here instead: what ccl encode wrote, so that images are read once."
    ),
    max_bad: float = MAX_BAD,
    version: int | None = VERSION,
    trust: bool = TRUST,
) -> None:
    """Find the images that are most like the query, and write a sheet of them to look at.

    Example: ccl search my-encoder query.jpg photos/ -k 10 -o search.html
    """
    from ccl.continual_encoder.continual_encoder import ContinualEncoder
    from ccl.runs.display import make_display

    where = images or None
    encoder, display = ContinualEncoder(folder), make_display()
    encoder.search(query, where, out, features=features, k=k, version=version, max_bad=max_bad, display=display)
