"""`ccl encode`: features of images."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ccl.cli.options import ENCODER, IMAGES, MAX_BAD, VERSION

if TYPE_CHECKING:
    from rich.console import Console


def encode(
    state: Path = ENCODER,
    images: list[str] = IMAGES,
    out: Path = typer.Option(..., "--out", "-o", help="The file to write: .npz, .csv or .parquet; or a folder."),
    max_bad: float = MAX_BAD,
    version: int | None = VERSION,
    shard: str | None = typer.Option(
        None, "--shard", metavar="I/N", help="Into the folder OUT: the I-th of N shares of the parts."
    ),
    part_images: int = typer.Option(10_000, "--part-images", min=1, help="Of a folder OUT: images in a part."),
) -> None:
    """Write the features of images, one row each, with their paths and the version that read them.

    What is not a usable image is left out and listed in OUT.bad_images.csv. With --shard, OUT is a folder of parts,
    written one by one and skipped where they are there: several processes can fill it (1/1: one does it all), and the
    same command again does what is missing.

    Example: ccl encode my-encoder photos/ -o features.npz

    Example: ccl encode my-encoder "shards:photos/*.tar" -o features --shard 3/16
    """
    from rich.console import Console

    from ccl.cli.image_input import found, read, report_left_out
    from ccl.continual_encoder.features import check_features_target, write_features
    from ccl.continual_encoder.frozen import frozen
    from ccl.errors import counted
    from ccl.runs.display import note

    console = Console()
    if shard is not None:
        _encode_parts(state, images, out, version, shard, part_images, console)
        return
    check_features_target(out)
    encoder = frozen(state, version)
    with found(images, console) as inputs:
        read_ones = read(encoder, inputs, console, out, max_bad)
    rows = read_ones.rows
    write_features(out, rows, read_ones.names, encoder.version, encoder.description)
    report_left_out(read_ones.skipped, console, out)
    note(
        console,
        f"{counted(len(rows), 'image')}, {rows.shape[1]} features each, read by version {encoder.version}: {out}",
    )


def _encode_parts(
    state: Path, images: list[str], out: Path, version: int | None, shard: str, part_images: int, console: "Console"
) -> None:
    from ccl.cli.image_input import bar, found, report_parts
    from ccl.continual_encoder import features as feature_parts
    from ccl.continual_encoder.frozen import frozen

    share = feature_parts.parse_share(shard)
    feature_parts.check_parts_target(out)
    encoder = frozen(state, version)
    with found(images, console) as inputs:
        manifest = feature_parts.Manifest.of(encoder, inputs.source, part_images)
        feature_parts.begin(out, manifest)
        with bar(console, "writing parts") as progress:
            written = list(feature_parts.write_parts(out, manifest, encoder, inputs, share, progress))
    report_parts(out, manifest, written, console)
