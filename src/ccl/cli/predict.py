"""`ccl predict`: the classes of new images."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER, IMAGES, MAX_BAD, VERSION


def predict(
    state: Path = ENCODER,
    images: list[str] = IMAGES,
    out: Path = typer.Option(..., "--out", "-o", help="The table to write: .csv with path, class, confidence."),
    classifier: Path | None = typer.Option(
        None, "--classifier", "-c", help="A file by ccl probe; else the encoder folder's newest for this version."
    ),
    any_version: bool = typer.Option(False, "--any-version", help="Also with a classifier of another version."),
    max_bad: float = MAX_BAD,
    version: int | None = VERSION,
) -> None:
    """Write the class of each image, and how confident the classifier is.

    What is not a usable image is left out and listed in OUT.bad_images.csv.

    Example: ccl predict my-encoder new-photos/ -o predictions.csv
    """
    from rich.console import Console

    from ccl.cli.image_input import found, read, report_left_out
    from ccl.continual_encoder import classifiers
    from ccl.continual_encoder.frozen import frozen
    from ccl.errors import counted
    from ccl.runs.display import note

    classifiers.check_predictions_target(out)
    console, encoder = Console(), frozen(state, version)
    path = classifier or classifiers.newest(state, encoder, any_version)
    fitted = classifiers.load(path)
    classifiers.check_fits(encoder, fitted, any_version)  # before the images are read
    with found(images, console) as inputs:
        features = read(encoder, inputs, console, out, max_bad)
    predictions = classifiers.predict(encoder, fitted, features.rows, any_version)
    classifiers.write_predictions(out, features.names, predictions)
    report_left_out(features.skipped, console, out)
    if fitted.about.fingerprint != encoder.fingerprint:
        then = f"version {fitted.about.version}"
        note(console, f"the classifier was fitted on {then}: what it was worth there says nothing here")
    note(console, f"{counted(len(predictions), 'image')} classified by {path}: {out}")
