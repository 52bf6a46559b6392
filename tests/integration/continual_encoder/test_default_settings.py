"""Settings chosen for images nobody has described."""

from typing import Any

import pytest

from ccl.continual_encoder.defaults import DropSize, changed, choose, refuse_mistakes
from ccl.errors import UserError
from ccl.settings import Settings


def first(num_images: int, side: int, device: str, asked: dict[str, Any]) -> tuple[Settings, list[str]]:
    """What is chosen for a first drop."""
    return choose(DropSize(num_images, side=side), None, asked, device == "cuda")


@pytest.mark.parametrize(
    ("num_images", "side", "device", "size", "resize", "stem", "width", "batch"),
    [
        (16, 16, "cpu", 16, 16, "cifar", 16, 16),
        (800, 32, "cpu", 32, 32, "cifar", 16, 64),
        (50_000, 32, "cpu", 32, 32, "cifar", 16, 128),
        (50_000, 32, "cuda", 32, 32, "cifar", 64, 256),
        (5_000, 84, "cpu", 64, 96, "imagenet", 16, 128),
        (5_000, 1080, "cpu", 64, 96, "imagenet", 16, 128),
        (5_000, 1080, "cuda", 224, None, "imagenet", 64, 256),
        (5_000, 100, "cuda", 64, 96, "imagenet", 64, 256),
    ],
)
def test_by_size_number_and_device(
    num_images: int, side: int, device: str, size: int, resize: int | None, stem: str, width: int, batch: int
) -> None:
    settings, reasons = first(num_images, side, device, {})
    assert (settings.views.size, settings.data.resize) == (size, resize)
    assert (settings.encoder.stem, settings.encoder.width, settings.batch_size) == (stem, width, batch)
    assert settings.batch_size <= num_images
    assert settings.moco_v2.queue_size <= max(64, num_images // 2)
    assert f"{side} px" in reasons[0]
    assert f"{num_images:,} images" in reasons[1]
    assert settings.device == "auto"  # a state may move to another machine


def test_larger_drops_take_fewer_epochs_within_bounds() -> None:
    epochs = [first(count, 32, "cpu", {})[0].epochs for count in (16, 1_000, 5_000, 100_000)]
    assert epochs == sorted(epochs, reverse=True)
    assert (epochs[0], epochs[-1]) == (200, 5)


def test_what_is_asked_for_wins_and_mistakes_are_told() -> None:
    settings = first(800, 32, "cpu", {"epochs": 7, "memory": {"budget": "5MB"}})[0]
    assert (settings.epochs, settings.memory.budget, settings.memory.clusters) == (7, "5MB", "estimate")
    with pytest.raises(UserError, match="did you mean"):
        refuse_mistakes({"memory": {"budgets": 3}})


def test_some_settings_hold_for_life() -> None:
    before, _ = first(800, 32, "cpu", {})
    assert changed(before, {"epochs": 3, "batch_size": 32, "memory": {"budget": 9}}).epochs == 3
    for asked in ({"encoder": {"width": 8}}, {"views": {"size": 16}}, {"strategy": "finetuning"}, {"seed": 4}):
        with pytest.raises(UserError, match="keeps these settings for life"):
            changed(before, asked)


@pytest.mark.parametrize(
    ("objective", "strategy"),
    [("moco_v2", "multi_view_rehearsal"), ("simclr", "multi_view_rehearsal"), ("byol", "balanced_rehearsal")],
)
def test_the_recipe_is_one_that_goes_with_the_objective(objective: str, strategy: str) -> None:
    settings, _ = first(1000, 32, "cpu", {"objective": objective})
    assert settings.strategy == strategy
    assert first(1000, 32, "cpu", {"objective": objective, "strategy": "finetuning"})[0].strategy == "finetuning"


def test_an_objective_s_own_network_and_optimizer_are_taken_and_named() -> None:
    settings, (seen, _) = first(1000, 32, "cpu", {"objective": "mae"})
    assert (settings.encoder.backbone, settings.encoder.width, settings.strategy) == (
        "vit_tiny",
        None,
        "balanced_rehearsal",
    )
    assert (settings.optimizer.name, settings.optimizer.learning_rate) == ("adamw", 1e-3)
    assert seen == "32 px → small images: views of 32 px, ViT-Ti"
    asked = {"objective": "mae", "optimizer": {"learning_rate": 5e-4}, "encoder": {"backbone": "vit_small"}}
    settings, _ = first(1000, 32, "cpu", asked)
    assert (settings.encoder.backbone, settings.optimizer.learning_rate) == ("vit_small", 5e-4)


@pytest.mark.parametrize("objective", ["byoll", ["byol"], 3])
def test_an_objective_that_does_not_exist_is_refused_in_words(objective: object) -> None:
    with pytest.raises(UserError, match="objective"):
        first(1000, 32, "cpu", {"objective": objective})
