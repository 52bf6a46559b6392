"""Builders: each reads the settings and passes plain keyword arguments on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ccl import ranks
from ccl.catalogue import TORCHVISION, foreign_kind, part_name, row_of
from ccl.composition import Composition
from ccl.encoders import Encoder, EncoderOptions, make_backbone, split_batch_norm
from ccl.encoders.batch_norm_statistics import AccumulatedStatistics
from ccl.encoders.factory import PRETRAINED, found_features, make_foreign, refuse_random
from ccl.encoders.weights import ImageFormat, Matched, matched, read_config, read_weights
from ccl.errors import UserError
from ccl.reading import build_encoder
from ccl.seeding import seeded
from ccl.settings import Settings
from ccl.training import Learner, Plan, Selection
from ccl.training.learner import CONTRAST
from ccl.training.precision import LossScaler
from ccl.views.recipes import IMAGENET_MEAN, IMAGENET_STD


def build_learner(settings: Settings, device: torch.device, start: Mapping[str, Tensor] | None = None) -> Learner:
    """Encoder, objective and the strategy's parts, freshly initialised from the seed; `start` is for the encoder."""
    encoder = build_encoder(settings, device, start)
    if foreign_kind(settings.encoder.backbone):
        refuse_random(encoder.backbone, settings.encoder.backbone, settings.views.to_recipe().size)
    method = settings.method
    retention = {part_name(name): _build("retention", name, settings, encoder) for name in method.retention}
    rules = [method.weight_rule] if method.weight_rule else []
    parts = retention | {part_name(name): _build("weight_rule", name, settings, encoder) for name in rules}
    objective = _build("objective", settings.objective, settings, encoder)
    weights = settings.weights.model_dump() if retention else {CONTRAST: 1.0}
    learner = Learner(encoder, objective, parts, weights, build_composition(settings), has_start(settings)).to(device)
    if settings.encoder.statistics == "accumulated":
        learner.statistics = AccumulatedStatistics(encoder)
    if encoder.dtype is torch.float16:
        learner.scaler = LossScaler(device.type)
    if settings.performance.compile:
        for module in learner.modules():
            if isinstance(module, Encoder):  # the student and its copies, each with its own mode
                module.compile()
    return learner


def has_start(settings: Settings) -> bool:
    """Whether the encoder knows something before the first step."""
    return settings.encoder.weights is not None


def build_composition(settings: Settings) -> Composition:
    """The composition asked for, or the strategy's own."""
    return cast(Composition, _build("composition", settings.method.composition, settings))


def _build(setting: str, part: str, settings: Settings, encoder: Encoder | None = None) -> Any:
    """A part: it gets by parameter names what it asks for of its options and of the rest."""
    name, objective = part_name(part), row_of("objective", settings.objective)
    offered: dict[str, Any] = {
        "options": getattr(settings, name, None),
        "temperature": settings.temperature,
        "seed": settings.seed,
        "has_start": has_start(settings),
        "objective_distance": objective.distance,
    }
    if objective.distance_weight:
        own = getattr(settings, part_name(settings.objective))
        offered["objective_weight"] = getattr(own, objective.distance_weight)
    offered |= {} if encoder is None else {"encoder": encoder, "dim": encoder.dim}
    with seeded(settings.seed, "part", name):  # where it owns weights
        made = row_of(setting, part).make(offered)
    if not isinstance(made, torch.nn.Module):
        return made
    return split_batch_norm(made, settings.encoder.num_groups, settings.encoder.is_synchronised)


def build_plan(settings: Settings) -> Plan:
    """Epochs, batches and the optimizer."""
    return Plan(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=settings.optimizer,
        batch_multiple=math.lcm(settings.encoder.batch_norm_groups, ranks.size()),
        seed=settings.seed,
        statistics=settings.encoder.statistics,
    )


def build_selection(settings: Settings) -> Selection | None:
    """The selection of each step; None where the strategy keeps nothing."""
    method = settings.method.selection
    return None if method is None else Selection(method, settings.memory, seed=settings.seed)


def refuse_ranks(settings: Settings) -> None:
    """Each process must have whole batch-norm groups, or all of them one; batches must divide too."""
    groups, count = settings.encoder.batch_norm_groups, ranks.size()
    nearest = -(-groups // count) * count
    if groups % count and groups != 1:
        raise UserError(
            f"encoder.batch_norm_groups {groups} can't be spread over {count} processes; "
            f"set it to {nearest} or another multiple of {count}, or to 1 for all processes together"
        )
    if not settings.encoder.is_synchronised:
        return
    norms = [name for name in settings.method.retention if row_of("retention", name).has_norms]
    what = f"the batch norms of {norms[0]}" if norms else "performance.compile" if settings.performance.compile else ""
    if what:
        raise UserError(
            f"encoder.batch_norm_groups 1 over {count} processes is not possible with {what}; set it to {nearest}"
        )
    if settings.batch_size % count:
        raise UserError(
            f"batch_size {settings.batch_size} can't be spread over {count} processes; "
            f"nearest valid value: {fitting(settings.batch_size, count)}"
        )


def fitting(num_images: int, groups: int) -> int:
    """The largest multiple of the groups in so many images, but one at least."""
    return max(num_images // groups * groups, groups)


@dataclass(frozen=True)
class Start:
    """The weights that an encoder starts from."""

    tensors: dict[str, Tensor]  # by the encoder's names
    line: str  # what was loaded and what not
    sha256: str  # of the file; "" where there is none


def resolved(settings: Settings) -> Settings:
    """The settings with what was left open of the images' size and normalisation, as the network describes it.

    Raises UserError where the network can't be made, or can't read images of that size.
    """
    options = settings.encoder
    if not foreign_kind(options.backbone) and options.weights is None:
        return settings
    network = make_backbone(options) if foreign_kind(options.backbone) else None
    wanted = _image_format(options, network)
    known = {"mean": wanted.mean and list(wanted.mean), "std": wanted.std and list(wanted.std), "size": wanted.size}
    left_open = {key: value for key, value in known.items() if value and getattr(settings.views, key) is None}
    settings = settings.model_copy(update={"views": settings.views.model_copy(update=left_open)})
    if network is not None:
        found_features(network, options.backbone, settings.views.to_recipe().size)
    return settings


def _image_format(options: EncoderOptions, network: nn.Module | None) -> ImageFormat:
    """As the weights say, else as the network does."""
    wanted = ImageFormat()
    if options.weights not in (None, PRETRAINED):
        wanted = ImageFormat.from_config(read_config(Path(str(options.weights))))
    if network is not None:
        wanted = wanted.over(ImageFormat.of_module(network))
    if foreign_kind(options.backbone) == TORCHVISION:
        wanted = wanted.over(ImageFormat(IMAGENET_MEAN, IMAGENET_STD, 224))
    return wanted


def build_start(settings: Settings) -> Start | None:
    """The weights that the settings name, matched to their network; None where it begins with nothing."""
    options = settings.encoder
    if options.weights is None:
        return None
    if options.weights == PRETRAINED:
        network = make_foreign(options.backbone, options=options.options, pretrained=True, width=options.width)
        tensors = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        found, sha256 = Matched(f"{options.backbone}, pretrained", tensors, len(tensors)), ""
    else:
        file = read_weights(Path(options.weights))
        found, sha256 = matched(file, make_backbone(options), options.backbone), file.sha256
    named = {f"backbone.{name}": tensor for name, tensor in found.tensors.items()}
    return Start(named, found.line, sha256)
