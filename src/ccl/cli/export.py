"""`ccl export`: the encoder as a file for other programs."""

from pathlib import Path

import typer

from ccl.cli.options import ENCODER, TRUST, VERSION


def export(
    folder: Path = ENCODER,
    out: Path = typer.Option(..., "--out", "-o", help="The file to write: .safetensors, .pt2, .onnx; or a folder."),
    images: list[str] = typer.Option(
        [], "--images", "-i", help="Images to compare it on; else those it remembers. Repeatable."
    ),
    version: int | None = VERSION,
    trust: bool = TRUST,
) -> None:
    """Write the encoder for other programs, and a card that says what it is and how to load it.

    .safetensors has torchvision's names, .pt2 needs torch alone, .onnx no torch at all. A folder has the hub's layout
    (config.json, model.safetensors, README.md), and timm reads it as local-dir:FOLDER where it has the network. Each is
    read back and compared with the original; a file whose features differ is not left behind.

    Example: ccl export my-encoder -o encoder.onnx
    """
    from ccl.continual_encoder.continual_encoder import ContinualEncoder
    from ccl.runs.display import make_display

    ContinualEncoder(folder).export(out, images=images or None, version=version, display=make_display())
