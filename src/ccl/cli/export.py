"""`ccl export`: the encoder as a file for other programs."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER, VERSION


def export(
    state: Path = ENCODER,
    out: Path = typer.Option(..., "--out", "-o", help="The file to write: .safetensors, .pt2, .onnx; or a folder."),
    images: list[str] = typer.Option(
        [], "--images", "-i", help="Images to compare it on; else pictures that ccl draws. Repeatable."
    ),
    version: int | None = VERSION,
) -> None:
    """Write the encoder for other programs, and a card that says what it is and how to load it.

    .safetensors has torchvision's names, .pt2 needs torch alone, .onnx no torch at all. A folder has the hub's layout
    (config.json, model.safetensors, README.md), and timm reads it as local-dir:FOLDER where it has the network. Each is
    read back and compared with the original; a file whose features differ is not left behind.

    Example: ccl export my-encoder -o encoder.onnx
    """
    from rich.console import Console

    from ccl.cli.image_input import bar, found, report_left_out
    from ccl.continual_encoder import exporting
    from ccl.continual_encoder.exporting import write_export
    from ccl.continual_encoder.frozen import frozen
    from ccl.data import collected
    from ccl.runs.display import note

    exporting.check_export_target(out)
    console, encoder = Console(), frozen(state, version)
    if images:
        with found(images, console) as inputs, bar(console, "exporting") as progress:
            read = collected(inputs, encoder.resize, progress=progress)
            exported, card = write_export(encoder, out, read.source)
        report_left_out(read.skipped, console)
    else:
        with bar(console, "exporting"):
            exported, card = write_export(encoder, out)
    note(console, f"version {encoder.version} as {exported.format}: {out}, {exported.checked}")
    note(console, f"what it is and how to load it: {card}")
