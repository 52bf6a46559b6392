"""Strategies that must be one and the same, bit for bit, and the purity of a run."""

import pytest
import torch
from combinations import ALL_PAIRS, FAST_PAIRS
from tiny import learn, same, tiny_settings

from ccl.catalogue import OBJECTIVES
from ccl.strategies import STRATEGIES


def assert_one(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    """Both settings learn the same bits from the same losses, and remember the same images."""
    (one, one_watch), (other, other_watch) = (learn(tiny_settings(*options)) for options in (first, second))
    assert same(one.state_dict(), other.state_dict())
    assert one_watch.losses == other_watch.losses
    assert one.memory.files == other.memory.files
    assert not one.memory.vectors


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_ccl_without_its_terms_and_with_random_selection_is_simple_rehearsal(objective: str) -> None:
    bare = ("weights.contrast=1", "weights.distillation=0", "weights.extra_sample_queue=0", "memory.selection=random")
    objective = f"objective={objective}"
    assert_one(("strategy=ccl", objective, *bare), ("strategy=simple_rehearsal", objective))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_simple_rehearsal_without_room_is_finetuning(objective: str) -> None:
    objective = f"objective={objective}"
    assert_one(("strategy=simple_rehearsal", objective, "memory.per_cluster=0"), ("strategy=finetuning", objective))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_with_one_step_all_strategies_agree(objective: str) -> None:
    one_step = ("dataset=symbols", "steps=1", f"objective={objective}", "encoder.statistics=running")
    names = [strategy for strategy, other in FAST_PAIRS if other == objective]
    encoders = [learn(tiny_settings(*one_step, f"strategy={name}"))[0].encoder.state_dict() for name in names]
    assert len(encoders) > 1
    assert all(same(encoders[0], other) for other in encoders[1:])


@pytest.mark.parametrize(
    "options",
    [
        *(
            (f"strategy={strategy}", "weights.predictive_distillation=0", "encoder.statistics=running")
            for strategy in ("cassle", "pfr", "feature_prediction")
        ),
        ("strategy=pnr", "weights.pnr=0", "encoder.statistics=running"),
        ("strategy=lump", "memory.per_cluster=0"),
    ],
    ids=" ".join,
)
def test_without_old_images_and_without_its_term_a_strategy_is_finetuning(options: tuple[str, ...]) -> None:
    bare, bare_watch = learn(tiny_settings(*options))
    finetuned, finetuned_watch = learn(tiny_settings("strategy=finetuning"))
    assert same(bare.state_dict(), finetuned.state_dict())
    assert bare_watch.losses == finetuned_watch.losses


@pytest.mark.parametrize(
    ("strategy", "part"),
    [
        ("predictive_rehearsal", "predictive_distillation"),
        ("balanced_rehearsal", "predictive_distillation"),
        ("multi_view_rehearsal", "further_views"),
        ("osiris", "cross_task"),
        ("cla", "alignment"),
        ("der", "der"),
    ],
)
def test_a_strategy_without_its_term_is_shared_rehearsal(strategy: str, part: str) -> None:
    bare = (f"strategy={strategy}", f"weights.{part}=0")
    assert_one((*bare, "share.old=0.3"), ("strategy=shared_rehearsal", "share.old=0.3"))
    assert_one((*bare, "composition=pooled"), ("strategy=simple_rehearsal",))


def test_the_terms_do_change_the_outcome() -> None:
    """The equalities above are worth something only if the whole method differs from its parts."""
    names = [name for name in STRATEGIES if name not in ("variance_queue", "random_ccl")]
    weights = [learn(tiny_settings(f"strategy={name}"))[0].product.state_dict() for name in names]
    for first in range(len(names)):
        for second in range(first):
            assert not same(weights[first], weights[second]), (names[first], names[second])


def test_a_run_is_a_pure_function_of_its_settings() -> None:
    torch.manual_seed(1)
    first, _ = learn(tiny_settings("strategy=ccl"))
    torch.manual_seed(2)
    torch.rand(7)
    again, _ = learn(tiny_settings("strategy=ccl"))
    other, _ = learn(tiny_settings("strategy=ccl", "seed=1"))
    assert same(first.state_dict(), again.state_dict())
    assert first.memory.files == again.memory.files
    assert not same(first.encoder.state_dict(), other.encoder.state_dict())


@pytest.mark.parametrize(("strategy", "objective"), ALL_PAIRS)
def test_every_strategy_learns_with_every_objective(strategy: str, objective: str) -> None:
    learner, watch = learn(tiny_settings(f"strategy={strategy}", f"objective={objective}", "epochs=1"))
    row = STRATEGIES[strategy]
    kept = 8 if row.selection else 0  # two images of each of four classes
    assert watch.sizes == ([(48, 0)] if row.all_at_once else [(24, 0), (24, kept)])
    assert set(watch.losses[0]) == {"contrast"}
    if not row.all_at_once:
        assert set().union(*watch.losses[-3:]) == {"contrast", *row.retention}
    assert all(torch.isfinite(value).all() for value in learner.encoder.state_dict().values())
