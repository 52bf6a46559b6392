"""Settings for images nobody has described: chosen from their size, their number and the device.

Conventions, not optima: sizes and widths are what two CPU cores or one GPU can learn in tens of minutes, and every
value can be overridden. How an image is seen and by which network is chosen once, at the first drop, and holds for
all later ones; how much work a drop is worth is chosen for each (`drop_effort`).
"""

from collections.abc import Mapping
from typing import Any

from ccl.catalogue import OBJECTIVES, RETENTION, WEIGHT_RULES, title_of
from ccl.compatibility import refusal
from ccl.continual_encoder.drop_effort import DropSize, choose_effort
from ccl.errors import UserError
from ccl.loading import validated
from ccl.section import merged
from ccl.settings import Settings, differences, own_defaults
from ccl.strategies import STRATEGIES

FEWEST_IMAGES = 16  # of a drop: fewer have no contrast to learn from
_FROZEN_SHARE = 0.45  # of the stages of a network that starts from weights; chosen by experiment (docs/adapting.md)
_SMALL, _MEDIUM = 48, 128  # longest shorter side, in pixels, of small and of medium images

# What an encoder folder must keep as long as it lives: the shape of its network and parts, and how it sees an image.
_PARTS = tuple(f"{name}." for name in (*OBJECTIVES, *RETENTION, *WEIGHT_RULES))
_FIXED = ("strategy", "objective", "retention", "weight_rule", "seed", "encoder.", "data.resize", *_PARTS)
_FIXED_VIEWS = ("views.recipe", "views.size")


def choose(num_images: int, side: int, device: str, asked: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """Settings for a first drop of images whose shorter side is `side` (the median), with what was asked for on top.

    And why they are what they are, a line each.
    """
    is_gpu = device == "cuda"
    values: dict[str, Any] = {"dataset": "folder", "strategy": _recipe(asked), "objective": "moco_v2"}
    seen, seen_why = _seeing(side, is_gpu)
    effort, effort_why = choose_effort(DropSize(num_images), is_gpu, asked)
    always = {"memory": {"clusters": "estimate"}, "moco_v2": {"key_momentum": 0.99}, "probe": {"after": "never"}}
    wanted = own_defaults(str(asked.get("objective", "moco_v2")), "")
    for part in (seen, effort, always, wanted, asked):
        values = merged(values, part)
    settings = validated(values)
    if settings.encoder.backbone != "resnet18":
        seen_why = f"{seen_why.partition(', ResNet-18')[0]}, {title_of(settings.encoder.backbone)}"
    return settings, [seen_why, effort_why]


def _recipe(asked: Mapping[str, Any]) -> str:
    """The best strategy (docs/results.md) that goes with the objective asked for."""
    recipe, objective = "multi_view_rehearsal", asked.get("objective", "moco_v2")
    is_known = isinstance(objective, str) and objective in OBJECTIVES  # else validation refuses it
    return "balanced_rehearsal" if is_known and refusal(recipe, STRATEGIES[recipe], objective) else recipe


def refuse_mistakes(asked: Mapping[str, Any]) -> None:
    """Raises UserError where no images could make this valid: a typo is reported before any work."""
    if isinstance(encoder := asked.get("encoder"), Mapping) and encoder.get("weights") is not None:
        raise UserError(
            "an encoder folder starts from weights with --from, or create(…, weights=…), not encoder.weights"
        )
    choose(10_000, 32, "cpu", asked)


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


def changed(before: Settings, asked: Mapping[str, Any]) -> Settings:
    """An encoder folder's settings with changes for the drops to come; refuses what must stay as it is."""
    now = validated(merged(before.model_dump(mode="json"), asked))
    wrong = [line for line in differences(before, now) if line.startswith(_FIXED) or line.startswith(_FIXED_VIEWS)]
    if now.moco_v2.queue_size > before.moco_v2.queue_size:
        wrong = [line for line in wrong if not line.startswith("moco_v2.queue_size")]  # it may grow
    if wrong:
        raise UserError(f"an encoder keeps these settings for life: {'; '.join(wrong)}; learn into another folder")
    return now
