"""`ccl predict`: the classes of new images."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER, IMAGES, MAX_BAD, TRUST, VERSION


def predict(
    folder: Path = ENCODER,
    images: list[str] = IMAGES,
    out: Path = typer.Option(..., "--out", "-o", help="The table to write: .csv with path, class, confidence."),
    classifier: Path | None = typer.Option(
        None, "--classifier", "-c", help="A file by ccl probe; else the encoder folder's newest for this version."
    ),
    any_version: bool = typer.Option(False, "--any-version", help="Also with a classifier of another version."),
    max_bad: float = MAX_BAD,
    version: int | None = VERSION,
    trust: bool = TRUST,
) -> None:
    """Write the class of each image, and how confident the classifier is.

    What is not a usable image is left out and listed in OUT.bad_images.csv.

    Example: ccl predict my-encoder new-photos/ -o predictions.csv
    """
    from ccl.continual_encoder.continual_encoder import ContinualEncoder
    from ccl.runs.display import make_display

    ContinualEncoder(folder).predict(
        images,
        path=out,
        classifier=classifier,
        any_version=any_version,
        version=version,
        max_bad=max_bad,
        display=make_display(),
    )
