"""`ccl encode`: features of images."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER, IMAGES, MAX_BAD, TRUST, VERSION


def encode(
    folder: Path = ENCODER,
    images: list[str] = IMAGES,
    out: Path = typer.Option(..., "--out", "-o", help="The file to write: .npz, .csv or .parquet; or a folder."),
    max_bad: float = MAX_BAD,
    version: int | None = VERSION,
    trust: bool = TRUST,
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
    from ccl.continual_encoder.continual_encoder import ContinualEncoder
    from ccl.runs.display import make_display

    encoder, display = ContinualEncoder(folder), make_display()
    if shard is None:
        encoder.encode_file(images, out, version=version, max_bad=max_bad, display=display)
    else:
        encoder.encode_parts(images, out, shard=shard, part_images=part_images, version=version, display=display)
