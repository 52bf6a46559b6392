"""Version 0: an encoder before its first drop, where it starts from given weights."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ccl.catalogue import BACKBONES, CLASS_PATH, TIMM, foreign_kind
from ccl.continual_encoder.choose_settings import choose_start, is_on_gpu
from ccl.continual_encoder.folder import ASKED, ENCODER, EncoderFolder
from ccl.continual_encoder.frozen_encoder import STUDENT
from ccl.continual_encoder.images import SILENT, listing_bad_images
from ccl.continual_encoder.ledger import STARTED, Ledger
from ccl.data import MAX_BAD, collected, find_images
from ccl.encoders.factory import PRETRAINED, make_backbone, reads
from ccl.encoders.stages import stages
from ccl.encoders.weights import ABOUT, read_config
from ccl.errors import UserError
from ccl.memory import RehearsalMemory
from ccl.reading import build_device, build_encoder
from ccl.runs.build import Start, build_learner, build_selection, build_start, resolved
from ccl.runs.folder_lock import locked
from ccl.section import merged
from ccl.seeding import permutation
from ccl.settings import Settings
from ccl.training import Observer

BEFORE = -1  # the step of images that stand for what was known before the first
_SMALLER = 128  # px: the size in which a network that can read it learns on a CPU


def source_of(weights: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Encoder settings for a source of weights: "timm:NAME", a class's path, a file or a folder."""
    path, is_there = Path(weights), os.path.exists(weights)
    if foreign_kind(weights) is not None and not is_there and path.suffix not in (".pt", ".pth", ".safetensors"):
        return {"backbone": weights, "weights": PRETRAINED}
    if weights in BACKBONES and not is_there:
        raise UserError(
            f"--from {weights}: ccl ships no weights; name a file, or timm:{weights} or torchvision:{weights}"
        )
    found: dict[str, Any] = {}
    if is_there and "backbone" not in asked.get("encoder", {}):
        found = _described(read_config(path))
        if not found:
            raise UserError(f"{weights} does not say which network it is of; add --set encoder.backbone=…")
    return found | {"weights": weights}


def _described(config: Mapping[str, Any]) -> dict[str, Any]:
    """The network that a file by `ccl export` or a folder of the hub names; {} where it names none that is known."""
    ours, name = config.get(ABOUT), str(config.get("architecture", "")).partition(".")[0]
    if isinstance(ours, Mapping) and isinstance(ours.get("architecture"), Mapping):
        found = {key: value for key, value in ours["architecture"].items() if value is not None}
        # A file may name a network, but not a class to import: that must be asked for.
        return {} if foreign_kind(str(found.get("backbone"))) == CLASS_PATH else found
    options = dict(config.get("model_args") or {})
    if name in BACKBONES and not options:
        return {"backbone": name, "stem": "imagenet"}  # timm's names of weights are torchvision's and ours
    return {"backbone": f"{TIMM}:{name}", "options": options} if name else {}


def begin_from(
    folder: EncoderFolder,
    weights: str,
    asked: Mapping[str, Any],
    keep: Sequence[str | Path] = (),
    display: Observer = SILENT,
    max_bad: float = MAX_BAD,
) -> None:
    """Make the encoder folder with these weights as version 0, unless it has been made so before.

    Images at `keep` stand for what the weights know: they are rehearsed from the first drop on. More than `max_bad`
    percent of unusable files among them are refused.
    """
    with listing_bad_images(folder.path), locked(folder.path, ENCODER):
        ledger = folder.ledger() if folder.exists() else Ledger()
        about = {"weights": weights, "keep": [str(path) for path in keep]}
        if _is_begun(folder, ledger, about):
            return
        ledger.asked = merged(ledger.asked, asked)
        settings, start = _chosen(weights, ledger.asked, display)
        memory, digests = _kept(settings, keep, display, max_bad)
        folder.write(ledger)  # first: it marks the folder as an encoder folder
        folder.write_settings(settings)
        # The encoder alone: what learns beside it is made when the first images are known.
        encoder = build_encoder(settings, torch.device("cpu"), start.tensors)
        tensors = {f"{STUDENT}{name}": value for name, value in encoder.state_dict().items()}
        past = {"steps": [], "next_id": len(digests), "weights": start.line}
        folder.versions.remove(0)  # of a process that was killed here: no ledger has it
        parts = {"learner": tensors, "memory": memory.state_dict()}
        begun = {**about, "line": start.line, "num_kept": len(memory)}
        folder.save(ledger, 0, None, parts, b"".join(digests), past, settings, {ASKED: ledger.asked, STARTED: begun})
        ledger.record(STARTED, version=0, **begun)
        folder.write(ledger)


def _is_begun(folder: EncoderFolder, ledger: Ledger, about: Mapping[str, Any]) -> bool:
    """Whether this folder has this start; refuses one that has another, or has learned without one."""
    events = [event for event in ledger.events if event["kind"] == STARTED]
    if not events and ledger.current:
        raise UserError(f"{folder.path} has learned from nothing already; name another folder to start from weights")
    if events and any(events[-1][key] != value for key, value in about.items()):
        raise UserError(
            f"{folder.path} started from {events[-1]['weights']} (kept: {events[-1]['keep'] or 'nothing'}); "
            "leave --from and --keep out, or name another folder"
        )
    return bool(events)


def _chosen(weights: str, asked: Mapping[str, Any], display: Observer) -> tuple[Settings, Start]:
    """Settings for the start, and the start itself; the size is the network's own, or a smaller one for a CPU."""
    known = merged({"encoder": source_of(weights, asked)}, asked)
    is_gpu = is_on_gpu(str(asked.get("device", "auto")))
    path = Path(weights)
    said = dict(read_config(path).get("preprocessing", {})) if os.path.exists(path) else {}
    settings = choose_start(known, is_gpu, None, said)[0]
    size = resolved(settings).views.to_recipe().size
    network = make_backbone(settings.encoder)
    can_be_smaller = size > _SMALLER and not is_gpu and reads(network, _SMALLER)
    size, num_stages = _SMALLER if can_be_smaller else size, len(stages(network))
    settings, reasons = choose_start(known, is_gpu, size, said, num_stages)
    settings = resolved(settings)
    start = build_start(settings)
    assert start is not None, "a start has weights"
    build_device(settings)
    build_learner(settings, torch.device("cpu"))  # refuses now what could not learn
    for line in [start.line, *reasons]:
        display.note(line)
    return settings, start


def _kept(
    settings: Settings, keep: Sequence[str | Path], display: Observer, max_bad: float
) -> tuple[RehearsalMemory, tuple[bytes, ...]]:
    """The images that stand for the past, as many of them as the memory may hold, and the digests of all."""
    memory = RehearsalMemory()
    if not keep:
        return memory, ()
    with TemporaryDirectory() as scratch:
        none_known, loading = (lambda digest: False), display.loading
        named = find_images(list(keep), Path(scratch), loading)
        found = collected(named, settings.data.resize, none_known, progress=loading, max_bad=max_bad)
        found = found.distinct()
        display.run_ends()
        if not len(found.source):
            raise UserError(f"--keep {keep[0]}: there are no images")
        images = found.source
        order = permutation(images.ids, settings.seed, "kept")
        # One cluster: nobody has grouped them, and the first drop has its own groups beside.
        memory.add(images, order, BEFORE, torch.zeros(len(order)), torch.full((len(order),), float("nan")))
        selection = build_selection(settings)
        if selection is None:
            raise UserError(f"--keep needs a memory, and strategy {settings.strategy} has none")
        if selection.budget is not None:
            memory.trim(selection.budget, settings.seed)
        display.note(f"{len(memory):,} of {len(order):,} images stand for what it knew, and are rehearsed")
        return memory, found.digests
