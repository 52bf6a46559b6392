"""`ccl doctor`: what this machine can do, with advice."""

import os
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import typer


def doctor() -> None:
    """Say what this machine can do: devices, threads, data found, measured speed, and which preset fits.

    Example: ccl doctor
    """
    for name, text in _findings():
        typer.echo(f"{name:<12} {text}")


def _findings() -> Iterator[tuple[str, str]]:
    import torch

    from ccl.data import data_root

    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
    yield "memory", _memory()
    yield "disk", f"{shutil.disk_usage(Path.cwd()).free / 2**30:.0f} GB free here"
    yield "device", _device()
    yield "precision", _precision()
    for package in ("torchvision", "timm", "onnx"):
        yield package, _optional(package)
    root = data_root(None)
    found = [name for name in ("cifar-10-batches-py", "cifar-100-python", "imagenet") if (root / name).is_dir()]
    yield "data", f"{root}: {', '.join(found) or 'nothing known; set CCL_DATA or --data-root (the demo needs none)'}"
    convnet, resnet = _images_per_second("convnet", None), _images_per_second("resnet18", 16)
    yield "speed", f"MoCo v2 at 16 px, images/s: convnet {convnet:,.0f}, ResNet-18 of width 16 {resnet:,.0f}"
    # cifar100-mini trains on 5 steps of 2,000 to 2,320 images for 100 epochs.
    minutes = 5 * 2160 * 100 / resnet / 60
    yield "advice", f"ccl demo, then ccl run cifar100-mini: about {minutes:.0f} minutes a strategy on this machine"


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{total / 2**30:.0f} GB"


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return f"cuda: {', '.join(names)}"
    if torch.backends.mps.is_available():
        return "mps (Apple GPU); its code path has not been tested on a real one"
    return "cpu only: the demo and the mini presets are made for it; the paper's presets want a GPU"


def _precision() -> str:
    """What `precision: auto` takes here, and whether the shorter formats work on this processor."""
    import torch

    from ccl.training.precision import choose, trouble_with

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    taken = str(choose("auto", device)).removeprefix("torch.")
    trials = {name: trouble_with(name, "cpu") for name in ("bfloat16", "float16")}
    told = "; ".join(f"{name} on the CPU {'works' if bad is None else f'not: {bad}'}" for name, bad in trials.items())
    return f"auto takes {taken}; {told}"


def _optional(package: str) -> str:
    try:
        module = __import__(package)
    except ImportError:
        return "not installed (optional)"
    except Exception as error:  # torchvision beside another torch build fails with RuntimeError
        return f"installed, but does not import: {type(error).__name__} (optional)"
    return f"{getattr(module, '__version__', 'installed')} (optional)"


def _images_per_second(backbone: str, width: int | None) -> float:
    """Measured on one resident batch of 128, after a warm-up, for about a second."""
    import torch

    from ccl.encoders import make_encoder
    from ccl.objectives import MoCoV2
    from ccl.views import ViewBatch

    encoder = make_encoder(backbone, width=width)
    objective = MoCoV2(encoder, queue_size=512, key_momentum=0.99, temperature=0.1)
    images = torch.randn(128, 3, 16, 16)
    batch = ViewBatch(torch.arange(128), torch.arange(128), (images, images), images[:0])
    optimizer = torch.optim.SGD(encoder.parameters(), 0.01)
    started, count = time.perf_counter(), -2
    while count < 1 or time.perf_counter() - started < 1.0:
        if count == 0:
            started = time.perf_counter()
        contrast = objective.contrast((encoder(images),), batch, (0, 0))
        optimizer.zero_grad()
        torch.autograd.backward(contrast.loss)
        optimizer.step()
        objective.after_update(encoder, contrast, batch.ids)
        count += 1
    return 128 * count / (time.perf_counter() - started)
