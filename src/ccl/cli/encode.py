"""`ccl encode`: features of images."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ccl.cli.options import DETACH, ENCODER, IMAGES, MAX_BAD, SLURM, VERSION, Place
from ccl.errors import UserError

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
    on: str = typer.Option(
        "local", "--on", help="local, or slurm: the parts of the folder OUT by jobs of the cluster."
    ),
    slurm: str | None = SLURM,
    jobs: int | None = typer.Option(
        None, "--jobs", "-j", min=1, help="With --on slurm: jobs, each doing a share of the parts; else 8."
    ),
    detach: bool = DETACH,
) -> None:
    """Write the features of images, one row each, with their paths and the version that read them.

    What is not a usable image is left out and listed in OUT.bad_images.csv. With --shard, OUT is a folder of parts,
    written one by one and skipped where they are there: several processes can fill it (1/1: one does it all), and the
    same command again does what is missing. With --on slurm, jobs of the cluster fill it (docs/shards.md); Ctrl-C
    cancels them, closing the terminal does not.

    Example: ccl encode my-encoder photos/ -o features.npz

    Example: ccl encode my-encoder "shards:photos/*.tar" -o features --on slurm --slurm "--partition=gpu --time=1:00:00"
    """
    place = _place(on, jobs, slurm, detach, shard)

    from rich.console import Console

    from ccl.cli.image_input import gathered, read, report_left_out
    from ccl.continual_encoder.feature_files import check_features_target, write_features
    from ccl.continual_encoder.frozen_encoder import frozen
    from ccl.errors import counted
    from ccl.runs.display import note

    console = Console()
    if place.on == "slurm":
        from ccl.cli.encode_jobs import encode_by_jobs
        from ccl.continual_encoder.feature_parts import check_parts_target

        check_parts_target(out)
        encode_by_jobs(state, images, out, version, part_images, place, console)
        return
    if shard is not None:
        _encode_parts(state, images, out, version, shard, part_images, console)
        return
    check_features_target(out)
    encoder = frozen(state, version)
    with gathered(images, console, out, max_bad) as found:
        rows = read(encoder, found.source, console)
        write_features(out, rows, found.names, encoder.version, encoder.description)
        report_left_out(found.skipped, console, out)
    note(
        console,
        f"{counted(len(rows), 'image')}, {rows.shape[1]} features each, read by version {encoder.version}: {out}",
    )


def _place(on: str, jobs: int | None, slurm: str | None, detach: bool, shard: str | None) -> Place:
    """Where the parts are made; a mistake is reported before torch is imported."""
    place = Place(on, jobs, slurm, detach=detach)
    if place.on == "local" and jobs is not None:
        raise UserError("--jobs belongs to --on slurm; add that, or start one ccl encode --shard I/N for each share")
    if place.on == "slurm" and shard is not None:
        raise UserError("--on slurm shares the parts out itself, into as many shares as --jobs; leave --shard out")
    return place


def _encode_parts(
    state: Path, images: list[str], out: Path, version: int | None, shard: str, part_images: int, console: "Console"
) -> None:
    from ccl.cli.image_input import bar, named, report_parts
    from ccl.continual_encoder import feature_parts
    from ccl.continual_encoder.frozen_encoder import frozen

    share = feature_parts.parse_share(shard)
    feature_parts.check_parts_target(out)
    encoder = frozen(state, version)
    with named(images, console) as (source, names):
        manifest = feature_parts.Manifest.of(encoder, source, part_images)
        feature_parts.begin(out, manifest)
        with bar(console, "writing parts") as progress:
            written = list(feature_parts.write_parts(out, manifest, encoder, source, names, share, progress))
    report_parts(out, manifest, written, console)
