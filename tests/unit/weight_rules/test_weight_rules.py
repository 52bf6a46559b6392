"""Rules for the weights, by hand on small tensors; whole streams are in tests/integration/training/test_weights.py."""

from typing import Any, cast

import pytest
import torch
from networks import make_encoder

from ccl.encoders import Encoder
from ccl.weight_rules import Average, Merge


def encoder(value: float, mean: float = 0.0, seed: int = 0) -> Encoder:
    """All weights one value, all running means another."""
    made = make_encoder("convnet", width=2, dim=3, seed=seed)
    fill(made, value, mean)
    return made


def fill(made: Encoder, value: float, mean: float = 0.0) -> None:
    for parameter in made.parameters():
        parameter.data.fill_(value)
    for name, buffer in made.named_buffers():
        if name.endswith("running_mean"):
            buffer.fill_(mean)


def values(made: Encoder) -> set[float]:
    return {float(value) for parameter in made.parameters() for value in parameter.detach().flatten()}


def begin(rule: Merge, student: Encoder, step: int) -> None:
    rule.begin_step(student, step, torch.arange(0))


@pytest.mark.parametrize(("share", "expected"), [(0.25, 3.5), (0.5, 4.0), (0.0, 3.0), (1.0, 5.0)])
def test_merged_weights_lie_between_before_and_after(share: float, expected: float) -> None:
    student = encoder(3.0)
    rule = Merge(student, Merge.Options(share=share))
    begin(rule, student, 1)
    fill(student, 5.0)
    rule.end_step(student)
    assert values(student) == {expected}
    assert rule.product(student) is student
    assert rule.moves_weights is (share < 1)


def test_merging_weighs_every_weight_of_its_own() -> None:
    before, after = make_encoder("convnet", width=2, dim=3, seed=1), make_encoder("convnet", width=2, dim=3, seed=2)
    student = make_encoder("convnet", width=2, dim=3, seed=1)
    rule = Merge(student, Merge.Options(share=0.3))
    begin(rule, student, 4)
    student.load_state_dict(after.state_dict())
    rule.end_step(student)
    for name, parameter in student.named_parameters():
        expected = 0.7 * before.get_parameter(name).double() + 0.3 * after.get_parameter(name).double()
        torch.testing.assert_close(parameter.double(), expected, rtol=1e-6, atol=1e-7)


def test_the_first_step_has_nothing_to_merge_with() -> None:
    student = encoder(3.0)
    rule = Merge(student, Merge.Options(share=0.5))
    begin(rule, student, 0)
    fill(student, 5.0)
    rule.end_step(student)
    assert values(student) == {5.0}
    assert not rule.moves_weights


def test_merging_remembers_in_its_state_what_was_before() -> None:
    """As after a break in the middle of a step: no step begins anew."""
    student = encoder(3.0)
    rule, restored = Merge(student, Merge.Options(share=0.5)), Merge(encoder(9.0), Merge.Options(share=0.5))
    begin(rule, student, 1)
    restored.load_state_dict(rule.state_dict())
    fill(student, 5.0)
    restored.end_step(student)
    assert values(student) == {4.0}


def follow(rule: Average, student: Encoder, *weights: float) -> None:
    for value in weights:
        fill(student, value, mean=10 * value)
        rule.after_update(student, cast(Any, None))


def average(rule: Average, student: Encoder) -> tuple[set[float], set[float]]:
    product = rule.product(student)
    means = {float(value) for name, buffer in product.named_buffers() if "mean" in name for value in buffer}
    return values(product), means


def test_the_first_updates_are_weighed_alike() -> None:
    student = encoder(100.0)
    rule = Average(student, Average.Options(momentum=0.999))
    follow(rule, student, 1.0, 2.0, 6.0)
    weights, means = average(rule, student)
    assert list(weights) == pytest.approx([3.0] * len(weights), rel=1e-6)  # the initialisation has no part in it
    assert list(means) == pytest.approx([30.0] * len(means), rel=1e-6)
    assert values(student) == {6.0}


def test_later_ones_move_the_average_by_a_share() -> None:
    student = encoder(100.0)
    rule = Average(student, Average.Options(momentum=0.75))
    follow(rule, student, 4.0, 4.0, 4.0, 4.0, 8.0, 0.0)
    expected = 0.75 * (0.75 * 4.0 + 0.25 * 8.0) + 0.25 * 0.0
    weights, _ = average(rule, student)
    assert list(weights) == pytest.approx([expected] * len(weights), rel=1e-6)


def test_the_average_never_learns_nor_trains() -> None:
    rule = Average(encoder(1.0), Average.Options(momentum=0.9))
    rule.train()
    product = rule.product(encoder(2.0))
    assert not any(parameter.requires_grad for parameter in product.parameters())
    assert not any(part.training for part in product.modules())


def test_the_count_of_updates_survives_a_break() -> None:
    student = encoder(0.0)
    rule, restored = (
        Average(student, Average.Options(momentum=0.999)),
        Average(student, Average.Options(momentum=0.999)),
    )
    follow(rule, student, 1.0, 2.0)
    restored.load_state_dict(rule.state_dict())
    follow(restored, student, 6.0)
    weights, _ = average(restored, student)
    assert list(weights) == pytest.approx([3.0] * len(weights), rel=1e-6)


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="share"):
        Merge(encoder(1.0), Merge.Options(share=1.5))
