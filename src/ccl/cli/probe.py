"""`ccl probe`: a classifier on the encoder's features, and what it is worth."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER, MAX_BAD, TRUST, VERSION


def probe(
    folder: Path = ENCODER,
    labelled: Path = typer.Argument(metavar="LABELLED", help="A folder of class folders, or with train/ and test/."),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="The classifier's file (.safetensors); else in ENCODER/classifiers."
    ),
    max_bad: float = MAX_BAD,
    version: int | None = VERSION,
    trust: bool = TRUST,
) -> None:
    """Fit a classifier on labelled images, report its accuracy on held-out ones, and keep it for ccl predict.

    Beside the learned features stand those of the encoder before its first drop, raw pixels and HOG, and a warning
    where the learned ones are not clearly better. Without a test/ or val/ part every fifth image of each class is held
    out.

    Example: ccl probe my-encoder labelled/
    """
    from ccl.continual_encoder.continual_encoder import ContinualEncoder
    from ccl.continual_encoder.folder_page import class_table, score_table
    from ccl.errors import counted
    from ccl.report.tables import to_rich
    from ccl.runs.display import make_display

    display = make_display()
    report = ContinualEncoder(folder).probe(labelled, path=out, version=version, max_bad=max_bad, display=display)
    about = report.classifier.about
    fitted = f"version {about.version}, {len(about.classes)} classes, fitted on {counted(about.num_images, 'image')}"
    if about.accuracy is None or report.confusion is None:
        display.note(f"{fitted}; no images were left to measure accuracy on")
        return
    found = about.accuracy
    right = f"linear {found.linear:.1f} %, {found.num_neighbours} nearest neighbours {found.knn:.1f} %"
    display.note(f"{fitted}; on {counted(found.num_images, 'held-out image')}: {right}")
    for table in (score_table(report.scores), class_table(report.class_names, report.confusion)):
        display.console.print(to_rich(table, display.console.width))
    for line in report.warnings:
        display.note(f"warning: {line}")
