"""The loss of masked autoencoders against a loop, closed forms and slopes."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ccl.losses import masked_patches


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some(count: int, num_patches: int, seed: int = 3) -> Tensor:
    """Unequal numbers of masked patches."""
    return torch.rand(count, num_patches, generator=torch.Generator().manual_seed(seed)) < 0.6


def by_hand(predicted: Tensor, patches: Tensor, is_masked: Tensor, num_off: int = 1) -> float:
    errors = []
    for image in range(len(patches)):
        for place in range(patches.shape[1]):
            values = patches[image, place].tolist()
            mean = sum(values) / len(values)
            variance = sum((value - mean) ** 2 for value in values) / (len(values) - num_off)
            targets = [(value - mean) / math.sqrt(variance + 1e-6) for value in values]
            guesses = predicted[image, place].tolist()
            error = sum((g - t) ** 2 for g, t in zip(guesses, targets, strict=True)) / len(values)
            errors += [error] if is_masked[image, place] else []
    return float(np.mean(errors))


def test_it_is_its_equation() -> None:
    predicted, patches, is_masked = rows(3, 5, 6), 4 * rows(3, 5, 6, seed=1) + 2, some(3, 5)
    patches[0, 0] *= 1e-3  # where the epsilon shows
    is_masked[0, 0] = True
    found = float(masked_patches(predicted, patches, is_masked))
    assert found == pytest.approx(by_hand(predicted, patches, is_masked), rel=1e-5)
    # Faults that the comparison finds: the biased variance, all patches, raw pixels.
    assert found != pytest.approx(by_hand(predicted, patches, is_masked, num_off=0), rel=1e-3)
    assert found != pytest.approx(by_hand(predicted, patches, torch.ones_like(is_masked)), rel=1e-3)
    raw = float(((predicted - patches) ** 2)[is_masked].mean())
    assert found != pytest.approx(raw, rel=1e-3)


def test_it_has_its_closed_forms() -> None:
    patches, is_masked = rows(2, 4, 12), some(2, 4)
    spread = (patches - patches.mean(2, keepdim=True)) / patches.std(2, keepdim=True)
    assert float(masked_patches(spread, patches, is_masked)) == pytest.approx(0, abs=1e-6)
    nothing = torch.zeros(2, 4, 12)
    assert float(masked_patches(nothing, patches, is_masked)) == pytest.approx(11 / 12, rel=1e-4)  # (P − 1) / P
    flat = torch.full((2, 4, 12), 0.25)
    assert float(masked_patches(nothing + 2, flat, is_masked)) == pytest.approx(4)


def test_brightness_and_contrast_of_a_patch_do_not_matter() -> None:
    predicted, patches, is_masked = rows(2, 4, 12), rows(2, 4, 12, seed=1), some(2, 4)
    changed = patches * (1 + rows(2, 4, 1, seed=2).abs()) + rows(2, 4, 1, seed=5)
    found = float(masked_patches(predicted, patches, is_masked))
    assert float(masked_patches(predicted, changed, is_masked)) == pytest.approx(found, rel=1e-4)


def test_only_masked_predictions_have_a_gradient_and_it_is_the_slope() -> None:
    predicted, patches, is_masked = rows(2, 3, 4).requires_grad_(), rows(2, 3, 4, seed=1).requires_grad_(), some(2, 3)
    masked_patches(predicted, patches, is_masked).backward()
    assert torch.equal(predicted.grad.abs().sum(dim=2) > 0, is_masked)
    assert patches.grad is None
    fixed = patches.detach()
    assert torch.autograd.gradcheck(
        lambda x: masked_patches(x, fixed, is_masked), (predicted,), eps=1e-3, atol=2e-2, rtol=1e-2
    )


def test_it_is_one_float32_whatever_comes_in() -> None:
    value = masked_patches(rows(2, 3, 4).to(torch.bfloat16), rows(2, 3, 4, seed=1).to(torch.bfloat16), some(2, 3))
    assert (value.dtype, value.shape) == (torch.float32, ())
