"""`ccl run`: one stream."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ccl.cli.options import DATA_ROOT, DOWNLOAD, PRESET, SET, echo, with_data

if TYPE_CHECKING:
    from ccl.settings import Settings


def run(
    preset: str = PRESET,
    out: Path | None = typer.Option(None, "--out", "-o", help="The run folder to make or to resume."),
    assignments: list[str] = SET,
    data_root: str | None = DATA_ROOT,
    download: bool = DOWNLOAD,
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show what the run would cost; writes nothing."),
) -> None:
    """Learn one stream and leave everything in a run folder; the same command again resumes where it stopped.

    Presets: demo, cifar100, cifar100-mini, domains-mini, imagenet-sub, imagenet-full, folder.

    Streams: data.stream=class, domain, data (random parts), blurred (classes overlap) or free (no borders);
    docs/streams.md.

    Several processes: torchrun --nproc-per-node 2 -m ccl run … (docs/distributed.md).

    Example: ccl run cifar100-mini --data-root DATA --set strategy=finetuning --set seed=1 --out runs/finetuning-1
    """
    from ccl.errors import UserError
    from ccl.loading import load_settings
    from ccl.runs.run_folder import is_finished

    settings = load_settings(preset, with_data(assignments, data_root, download))
    if dry_run:
        _show_cost(settings)
        return
    if out is None:
        raise UserError("--out DIR is missing: the run folder to make or to resume")
    is_alone = "RANK" not in os.environ  # ranks ask the first, so that none leaves while the others wait for it
    if is_alone and is_finished(settings, out) and (out / "report.html").exists():  # killed before it: it is written
        echo(f"{out} holds this run already, complete; nothing to do")
        return

    from ccl import ranks  # after the settings: a typo is reported at once, torch takes seconds
    from ccl.reading import build_device
    from ccl.report.run_page import write_page
    from ccl.report.tables import print_tables
    from ccl.runs import one_run
    from ccl.runs.display import make_display

    ranks.start(build_device(settings).type)
    display = make_display()
    record = one_run.run(settings, out, display)
    is_first = ranks.is_first()
    ranks.stop()
    if not is_first:
        return
    title = f"{settings.strategy} on {record.protocol['dataset']}"
    print_tables(write_page([record], out / "report.html", title)[:1], out / "report.html", display.console)


def _show_cost(settings: "Settings") -> None:
    """The forecast for these settings, with a rate measured on this machine."""
    import torch

    from ccl.reading import build_device
    from ccl.runs import forecast
    from ccl.runs.build import resolved

    device, settings = build_device(settings), resolved(settings)
    forecast.refuse_too_large(settings, device)
    work, learner = forecast.work_of(settings), forecast.learner_bytes(settings)
    seconds, total = forecast.seconds_here(settings, work.share_old), sum(learner.values())
    checkpoint, whole = forecast.size(total - learner["gradients"]), forecast.clock(work.cost * seconds)
    threads = f"cpu, {torch.get_num_threads()} threads"
    rows = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else threads,
        "training": f"{work.num_images / 1e6:,.2f} million image passes in {work.num_updates:,} updates",
        "memory": f"{forecast.size(total)}: {settings.encoder.backbone}, its copies and queues; a batch on top",
        "disk": f"{checkpoint} a checkpoint, {settings.checkpoint.keep} kept; images beside",
        "time": f"about {whole} here at {1 / seconds:,.0f} images/s, measured just now; probes come on top",
    }
    for term, words in rows.items():
        echo(f"{term:<10} {words}")
