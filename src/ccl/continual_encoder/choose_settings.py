"""Default settings of an encoder folder, chosen from the images' size and number and the device.

Conventions, not optima: sizes, widths and updates are what two CPU cores or one GPU can learn in minutes to tens of
minutes, and every value can be overridden. How an image is seen and by which network is chosen once, at the first drop,
and holds for all later ones; how much work a drop is worth, and how much of it is kept, is chosen for each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ccl.catalogue import OBJECTIVES, RETENTION, WEIGHT_RULES, is_path, title_of
from ccl.errors import UserError, counted
from ccl.loading import validated
from ccl.section import merged
from ccl.settings import Settings, differences, own_defaults
from ccl.strategies import STRATEGIES, refusal

FEWEST_IMAGES = 16  # of a drop: fewer have no contrast to learn from
MEMORY_SHARE = 0.05  # of all images seen that are remembered
FEWEST_KEPT, MOST_KEPT = 100, 2_000  # images, whatever the share says
_SMALLEST_QUEUE, _LARGEST_QUEUE = 64, 4096
_SMALL, _MEDIUM = 48, 128  # longest shorter side, in pixels, of small and of medium images
# For weights that know something: fewer and smaller steps than from nothing.
_ADAPTING_BATCH, _ADAPTING_RATE = 64, 0.001  # at 0.01 with frozen batch norm features collapse (docs/adapting.md)
_ADAPTING = (300, 2, 20)  # updates, and the fewest and most epochs
_FROZEN_SHARE = 0.45  # of the stages of a network that starts from weights; chosen by experiment (docs/adapting.md)

# What an encoder folder must keep as long as it lives: the shape of its network and parts, and how it sees an image.
_PARTS = tuple(f"{name}." for name in (*OBJECTIVES, *RETENTION, *WEIGHT_RULES))
_FIXED = ("strategy", "objective", "retention", "weight_rule", "seed", "encoder.", "data.resize", *_PARTS)
_FIXED_VIEWS = ("views.recipe", "views.size")


@dataclass(frozen=True)
class DropSize:
    """The sizes from which a drop's settings are chosen."""

    num_new: int
    num_remembered: int = 0  # images of earlier drops that are learned with it
    num_seen: int = 0  # images of all earlier drops
    num_drops: int = 0  # learned before
    side: int = 32  # the median of the images' shorter sides, in pixels


def choose(
    size: DropSize, before: Settings | None, asked: Mapping[str, Any], is_gpu: bool = False
) -> tuple[Settings, list[str]]:
    """Settings of a drop with what was asked for on top, and why they are what they are, a line each.

    `before` are the folder's settings, None for its first drop; `is_gpu`: on what it learns (`is_on_gpu`).
    """
    if before is None:
        return _choose_first(size, asked, is_gpu)
    effort, why = choose_effort(size, is_gpu, asked, before.encoder.weights is not None)
    # An objective that brings its own optimizer brings its rate too.
    effort = merged(effort, {"optimizer": own_defaults(before.objective, "").get("optimizer", {})})
    if not size.num_drops:  # weights that nothing was learned with yet: a queue may have any length
        return validated(merged(merged(before.model_dump(mode="json"), effort), asked)), [why]
    # A queue only grows: what it holds came from the encoder before, and is not thrown away.
    effort["moco_v2"]["queue_size"] = max(effort["moco_v2"]["queue_size"], before.moco_v2.queue_size)
    return changed(before, merged(effort, asked)), [why]


def _choose_first(size: DropSize, asked: Mapping[str, Any], is_gpu: bool) -> tuple[Settings, list[str]]:
    # The best strategy (docs/results.md) that goes with the objective asked for.
    strategy, objective = "multi_view_rehearsal", asked.get("objective", "moco_v2")
    is_known = isinstance(objective, str) and (objective in OBJECTIVES or is_path(objective))  # else it is refused
    if is_known and refusal(strategy, STRATEGIES[strategy], objective):
        strategy = "balanced_rehearsal"
    values: dict[str, Any] = {"dataset": "folder", "strategy": strategy, "objective": "moco_v2"}
    seen, seen_why = _seeing(size.side, is_gpu)
    effort, effort_why = choose_effort(size, is_gpu, asked)
    always = {"memory": {"clusters": "estimate"}, "moco_v2": {"key_momentum": 0.99}, "probe": {"after": "never"}}
    for part in (seen, effort, always, own_defaults(str(objective), ""), asked):
        values = merged(values, part)
    settings = validated(values)
    if settings.encoder.backbone != "resnet18":
        seen_why = f"{seen_why.partition(', ResNet-18')[0]}, {title_of(settings.encoder.backbone)}"
    return settings, [seen_why, effort_why]


def _seeing(side: int, is_gpu: bool) -> tuple[dict[str, Any], str]:
    """Views and network by the size of the images."""
    width = 64 if is_gpu else 16
    encoder = {"backbone": "resnet18", "width": width, "dim": 128, "batch_norm_groups": 1}
    if side <= _SMALL:
        size = 16 if side <= 20 else 32
        why = f"{side} px → small images: views of {size} px, ResNet-18 of width {width} with the CIFAR stem"
        seen = {"data": {"resize": size}, "views": {"recipe": "moco_cifar", "size": size, "min_scale": 0.2}}
        return seen | {"encoder": {**encoder, "stem": "cifar"}, "temperature": 0.1}, why
    photos = {"encoder": {**encoder, "stem": "imagenet"}, "temperature": 0.2}
    if is_gpu and side > _MEDIUM:
        why = f"{side} px → photographs: views of 224 px cut by workers, ResNet-18 with the ImageNet stem"
        return photos | {"views": {"recipe": "moco_imagenet", "size": 224}, "data": {"workers": 4}}, why
    why = f"{side} px → brought to 96 px: views of 64 px, ResNet-18 of width {width} with the ImageNet stem"
    return photos | {"views": {"recipe": "moco_imagenet", "size": 64}, "data": {"resize": 96}}, why


def choose_effort(
    size: DropSize, is_gpu: bool, asked: Mapping[str, Any], adapts: bool = False
) -> tuple[dict[str, Any], str]:
    """Batch, learning rate, epochs, queue and memory, with a line that says why; a batch that was asked for counts.

    A set number of updates, whatever a drop's size, within bounds on the epochs. `adapts`: the encoder started from
    weights that know something.
    """
    num_images = size.num_new + size.num_remembered  # of an epoch
    largest = _ADAPTING_BATCH if adapts else 256 if is_gpu else 128
    chosen = min(largest, max(16, _power_below(num_images // 8)))
    batch = asked["batch_size"] if isinstance(asked.get("batch_size"), int) else chosen
    queue = min(_LARGEST_QUEUE, max(_SMALLEST_QUEUE, _power_below(num_images // 2)))
    updates, fewest, most = _ADAPTING if adapts else (20_000, 50, 400) if is_gpu else (2_000, 5, 200)
    epochs = min(most, max(fewest, round(updates * batch / num_images)))
    budget = min(MOST_KEPT, max(FEWEST_KEPT, round(MEMORY_SHARE * (size.num_seen + size.num_new))))
    effort = {
        "batch_size": batch,
        "epochs": epochs,
        "optimizer": {"learning_rate": _ADAPTING_RATE if adapts else round(0.06 * batch / 128, 4)},
        "moco_v2": {"queue_size": queue},
        "memory": {"budget": budget},
    }
    old = f" and {size.num_remembered:,} remembered" if size.num_remembered else ""
    values = merged(effort, asked)  # what follows from the size, and what was asked for instead
    kept = values["memory"]["budget"]
    why = (
        f"{counted(size.num_new, 'image')}{old} → batches of {values['batch_size']}, "
        f"{counted(values['epochs'], 'epoch')}, a queue of {values['moco_v2']['queue_size']}; "
        f"{counted(kept, 'image') if isinstance(kept, int) else kept} may be remembered in all"
    )
    return effort, f"{why}; to adapt, at a rate of {_ADAPTING_RATE:g}" if adapts else why


def _power_below(number: int) -> int:
    """The largest power of two that is not larger; 1 for less than 1."""
    return 1 << max(0, number.bit_length() - 1)


def choose_start(
    asked: Mapping[str, Any], is_gpu: bool, size: int | None, said: Mapping[str, Any], num_stages: int = 0
) -> tuple[Settings, list[str]]:
    """Settings for an encoder that starts from weights, and why; `asked` names them, and is laid on top.

    `size` is the side of its views, None: yet to be found; `said` how a file by `ccl export` wants its images;
    `num_stages` how many stages the network has, of which the first ones are frozen.
    """
    values: dict[str, Any] = {"dataset": "folder", "objective": "moco_v2", "strategy": "predictive_rehearsal"}
    seen: dict[str, Any] = {"views": {"recipe": "moco_imagenet"}, "temperature": 0.2}
    if said:
        recipe = "moco_cifar" if said.get("crop_fraction") == 1 else "moco_imagenet"
        seen = {"views": {"recipe": recipe, "size": said.get("size"), "min_scale": 0.2}, "temperature": 0.1}
        seen["data"] = {"resize": said.get("resize")}
    elif size is not None:
        seen["views"]["size"] = size
        is_cut = is_gpu and size > _MEDIUM
        seen["data"] = {"workers": 4} if is_cut else {"resize": round(size * 8 / 7)}
    kept = {
        "memory": {"clusters": "estimate", "budget": 2000, "selection": "view_variance"},
        "predictive_distillation": {"space": "features"},
        "encoder": {
            "stem": "imagenet",
            "batch_norm_groups": 1,
            "freeze_batch_norm": True,
            "freeze_stages": int(_FROZEN_SHARE * num_stages),
        },
        "weight_rule": "merge",  # with the weights from before each drop: half of what is lost of the old comes back
        "probe": {"after": "never"},
    }
    for part in (seen, kept, asked):
        values = merged(values, part)
    settings = validated(values)
    frozen = settings.encoder.freeze_stages
    why = f"{settings.encoder.backbone}, views of {settings.views.size} px; batch norm frozen, "
    why += f"and the first {frozen} of {num_stages} stages, " if frozen else ""
    why += "its features distilled, its weights merged with those before a drop"
    return settings, [why]


def is_on_gpu(device: str) -> bool:
    """Whether a device of the settings is a GPU here."""
    return torch.cuda.is_available() if device == "auto" else device.startswith("cuda")


def refuse_mistakes(asked: Mapping[str, Any]) -> None:
    """Raises UserError where no images could make this valid: a typo is reported before any work."""
    if isinstance(encoder := asked.get("encoder"), Mapping) and encoder.get("weights") is not None:
        raise UserError(
            "an encoder folder starts from weights with --from, or create(…, weights=…), not encoder.weights"
        )
    choose(DropSize(10_000), None, asked)


def changed(before: Settings, asked: Mapping[str, Any]) -> Settings:
    """An encoder folder's settings with changes for the drops to come; refuses what must stay as it is."""
    now = validated(merged(before.model_dump(mode="json"), asked))
    own = tuple(f"{name}." for name in type(before).model_fields if name not in Settings.model_fields)
    fixed = (*_FIXED, *_FIXED_VIEWS, *own)  # and options of parts of one's own
    wrong = [line for line in differences(before, now) if line.startswith(fixed)]
    if now.moco_v2.queue_size > before.moco_v2.queue_size:
        wrong = [line for line in wrong if not line.startswith("moco_v2.queue_size")]  # it may grow
    if wrong:
        raise UserError(f"an encoder keeps these settings for life: {'; '.join(wrong)}; learn into another folder")
    return now
