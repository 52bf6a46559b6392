"""`ccl probe`: a classifier on the encoder's features, and what it is worth."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER, MAX_BAD, VERSION


def probe(
    state: Path = ENCODER,
    labelled: Path = typer.Argument(metavar="LABELLED", help="A folder of class folders, or with train/ and test/."),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="The classifier's file (.safetensors); else in ENCODER/classifiers."
    ),
    max_bad: float = MAX_BAD,
    version: int | None = VERSION,
) -> None:
    """Fit a classifier on labelled images, report its accuracy on held-out ones, and keep it for ccl predict.

    Beside the learned features stand those of the encoder before its first drop, raw pixels and HOG, and a warning
    where the learned ones are not clearly better. Without a test/ or val/ part every fifth image of each class is held
    out.

    Example: ccl probe my-encoder labelled/
    """
    from rich.console import Console

    from ccl.cli.image_input import bar, report_left_out
    from ccl.continual_encoder.classifiers import check_classifier_target, default_path, save
    from ccl.continual_encoder.frozen import frozen, start
    from ccl.continual_encoder.images import bad_images_beside, listing_bad_images
    from ccl.continual_encoder.judge import probe as probed
    from ccl.continual_encoder.show import class_table, score_table, write_confusion
    from ccl.data import load_dataset
    from ccl.errors import UserError, counted
    from ccl.report.tables import to_rich
    from ccl.runs.display import note

    if not labelled.is_dir():
        raise UserError(f"{labelled} is not a folder")
    console, encoder = Console(), frozen(state, version)
    out = out or default_path(state, labelled, encoder.version)
    check_classifier_target(out)
    with bar(console, "looking through the images") as progress, listing_bad_images(bad_images_beside(out)):
        dataset = load_dataset("folder", labelled, resize=encoder.resize, progress=progress, max_bad=max_bad)
    for line in dataset.notes:
        note(console, line)
    report_left_out(dataset.skipped, console, out)
    with bar(console, "reading the images") as progress:
        report = probed(encoder, dataset, start(state), progress)
    save(report.classifier, out)
    about = report.classifier.about
    images = counted(about.num_images, "image")
    fitted = f"version {about.version}, {len(about.classes)} classes, fitted on {images}"
    if about.accuracy is None or report.confusion is None:
        note(console, f"{fitted}; no images were left to measure accuracy on")
    else:
        found, picture = about.accuracy, out.with_suffix(".confusion.png")
        right = f"linear {found.linear:.1f} %, {found.num_neighbours} nearest neighbours {found.knn:.1f} %"
        note(console, f"{fitted}; on {counted(found.num_images, 'held-out image')}: {right}")
        for table in (score_table(report.scores), class_table(report.class_names, report.confusion)):
            console.print(to_rich(table, console.width))
        for line in report.warnings:
            note(console, f"warning: {line}")
        write_confusion(picture, report.class_names, report.confusion)
        note(console, f"which classes are taken for which: {picture}")
    note(console, f"the classifier: {out}")
