"""`ccl encode`: features of images."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER, IMAGES, MAX_BAD, VERSION


def encode(
    state: Path = ENCODER,
    images: list[str] = IMAGES,
    out: Path = typer.Option(..., "--out", "-o", help="The file to write: .npz, .csv or .parquet."),
    max_bad: float = MAX_BAD,
    version: int | None = VERSION,
) -> None:
    """Write the features of images, one row each, with their paths and the version that read them.

    What is not a usable image is left out and listed in OUT.bad_images.csv.

    Example: ccl encode my-encoder photos/ -o features.npz
    """
    from rich.console import Console

    from ccl.cli.image_input import gathered, read, report_left_out
    from ccl.continual_encoder.feature_files import check_features_target, write_features
    from ccl.continual_encoder.frozen_encoder import frozen
    from ccl.errors import counted
    from ccl.runs.display import note

    check_features_target(out)
    console, encoder = Console(), frozen(state, version)
    with gathered(images, console, out, max_bad) as found:
        rows = read(encoder, found.source, console)
        write_features(out, rows, found.names, encoder.version, encoder.description)
        report_left_out(found.skipped, console, out)
    note(
        console,
        f"{counted(len(rows), 'image')}, {rows.shape[1]} features each, read by version {encoder.version}: {out}",
    )
