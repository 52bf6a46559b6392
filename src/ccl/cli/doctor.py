"""`ccl doctor`: what this machine can do, with advice."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from ccl.cli.options import echo


def doctor(
    measure: bool = typer.Option(
        False, "--measure", help="Also measure speed and try the shorter number formats: some 10 seconds."
    ),
) -> None:
    """Show what this machine can do: devices, threads, data found, which preset fits and, if asked for, its speed.

    Example: ccl doctor --measure
    """
    for name, text in _findings(measure):
        echo(f"{name:<12} {text}")


def _findings(measure: bool) -> Iterator[tuple[str, str]]:
    import torch

    from ccl.data import data_root
    from ccl.runs.forecast import device_memory

    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
    memory = device_memory(torch.device("cpu"))
    yield "memory", f"{memory / 2**30:.0f} GB" if memory else "unknown"
    yield "disk", f"{shutil.disk_usage(Path.cwd()).free / 2**30:.0f} GB free here"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        yield "device", f"cuda: {', '.join(names)}"
    elif torch.backends.mps.is_available():
        yield "device", "mps (Apple GPU); its code path has not been tested on a real one"
    else:
        yield "device", "cpu only: the demo and the mini presets are made for it; the paper's presets want a GPU"
    yield "precision", _precision(measure)
    for package in ("torchvision", "timm", "onnx"):
        try:
            yield package, f"{version(package)} (optional)"
        except PackageNotFoundError:
            yield package, "not installed (optional)"
    root = data_root(None)
    found = [name for name in ("cifar-10-batches-py", "cifar-100-python", "imagenet") if (root / name).is_dir()]
    yield "data", f"{root}: {', '.join(found) or 'nothing known; set CCL_DATA or --data-root (the demo needs none)'}"
    if measure:
        yield from _speed()
    else:
        yield "advice", "ccl demo, then ccl run cifar100-mini; ccl doctor --measure says how long they take here"


def _speed() -> Iterator[tuple[str, str]]:
    """Images a second of the two small presets here, and how long a run would take."""
    from ccl.loading import load_settings
    from ccl.runs.forecast import clock, seconds_here, work_of

    mini = load_settings("cifar100-mini")
    small, larger = seconds_here(load_settings("demo"), patience=1.0), seconds_here(mini, patience=1.0)
    rates = f"convnet {1 / small:,.0f}, ResNet-18 of width 16 {1 / larger:,.0f}"
    yield "speed", f"MoCo v2 at 16 px, images/s: {rates}"
    takes = clock(work_of(mini).cost * larger)
    yield "advice", f"ccl demo, then ccl run cifar100-mini: about {takes} a strategy on this machine"


def _precision(measure: bool) -> str:
    """The format of `precision: auto` here, and whether the shorter ones work on this processor, if they are tried."""
    import torch

    from ccl.training.precision import choose, trouble_with

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = f"auto takes {str(choose('auto', device)).removeprefix('torch.')}"
    for name in ("bfloat16", "float16") if measure else ():
        bad = trouble_with(name, "cpu")
        text += f"; {name} on the CPU {'works' if bad is None else f'not: {bad}'}"
    return text
