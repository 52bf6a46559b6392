"""The sentence that the page begins with: every claim in it is one that a test carries, and one seed carries none."""

from collections.abc import Callable, Sequence

import pytest

from ccl.report.answer import answers, context
from ccl.report.run_groups import make_arms
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]
Grid = dict[str, Sequence[float]]


@pytest.fixture
def answer_of(record_of: Make) -> Callable[[Grid], str]:
    """The answer to a stream of one step; the accuracies on all classes of each strategy's seeds."""

    def make(grid: Grid) -> str:
        runs = [
            record_of(strategy, [[20], [2 * value]], f"seed={seed}", names=["a"])
            for strategy, values in grid.items()
            for seed, value in enumerate(values)
        ]
        (sentence,) = answers(make_arms(runs))
        return sentence

    return make


def test_one_seed_ranks_nothing(answer_of: Callable[[Grid], str]) -> None:
    said = answer_of({"finetuning": [30], "ccl": [45], "upper_bound": [49]})
    assert said.startswith(
        "One seed ranks nothing: CCL 45.0 % (1.00× Finetuning's training time) and Finetuning 30.0 % on all classes, "
        "each measured once; "
    )
    assert not any(claim in said for claim in ("better than", "highest", "best"))


def test_what_no_test_tells_apart_is_not_called_better(answer_of: Callable[[Grid], str]) -> None:
    said = answer_of({"finetuning": [30, 40, 35], "ccl": [34, 38, 39]})
    assert said.startswith(
        "CCL has the highest mean of 2 strategies, 37.0 % on all classes (95 % interval 30.4 to 43.6, "
    )
    assert (
        "3 seeds): not distinguishable from Finetuning by paired tests; its price is 2.5 s of training (1.00× " in said
    )
    assert "better" not in said


def test_what_tests_tell_apart_is_better_by_so_much(answer_of: Callable[[Grid], str]) -> None:
    """CCL is 9.9, 10 and 10.1 above Finetuning: the half-interval is 4.303 · 0.1 / √3 = 0.25."""
    said = answer_of({"finetuning": [30, 34, 32], "ccl": [39.9, 44, 42.1], "simple_rehearsal": [43, 38, 44]})
    assert "CCL has the highest mean of 3 strategies, 42.0 %" in said
    assert (
        ": better than Finetuning by 10.0 points (9.8 to 10.2) by paired tests; not distinguishable from Simple "
        in said
    )


def test_the_leader_is_tested_against_arms_that_the_table_does_not_test(answer_of: Callable[[Grid], str]) -> None:
    """The differences are 2, 3 and 3.5: p is 0.023 for the pair alone, and 0.07 with all pairs of three counted."""
    pair: Grid = {"ccl": [40, 42, 44], "variance_rehearsal": [38, 39, 40.5]}
    assert "better than + variance sampling by 2.8 points" in answer_of(pair)
    said = answer_of({**pair, "shared_rehearsal": [30, 50, 41]})
    assert "not distinguishable from + variance sampling and Shared Rehearsal by paired tests" in said
    assert "better" not in said


def test_few_equal_seeds_are_said(answer_of: Callable[[Grid], str]) -> None:
    said = answer_of({"finetuning": [30], "ccl": [45, 46]})
    assert "CCL has the highest mean of 2 strategies, 45.5 %" in said
    assert "not tested against Finetuning, for want of two equal seeds" in said


def test_a_single_arm_is_compared_with_nothing(answer_of: Callable[[Grid], str]) -> None:
    assert "there is no other strategy to compare it with" in answer_of({"ccl": [45, 46], "upper_bound": [49, 49]})
    assert answer_of({"ccl": [45]}).startswith("CCL reaches 45.0 % on all classes by one seed, which says nothing of")


def test_each_number_of_steps_has_its_own_answer(record_of: Make) -> None:
    three, two = [[30, 32, 34], *[[60, 72, 90]] * 3], [[30, 32], *[[60, 80]] * 2]
    runs = [record_of(strategy, three, "steps=3") for strategy in ("ccl", "finetuning")]
    runs += [record_of("ccl", two, "steps=2", names=("x", "y"), dataset="digits+capitals+greek")]
    assert [said[:27] for said in answers(make_arms(runs))] == [
        "T = 2: CCL, T = 2 reaches 3",
        "T = 3: One seed ranks nothi",
    ]


def test_what_cannot_be_compared_is_not_ranked(record_of: Make) -> None:
    runs = [record_of("ccl", [[20], [80]], names=["a"]), record_of("finetuning", [[20], [60]], names=["a"])]
    runs[1].protocol["fingerprint"] = "beef"
    assert answers(make_arms(runs)) == ["These runs can't be ranked: they differ in dataset fingerprint."]


def test_without_a_last_probe_there_is_no_answer(record_of: Make) -> None:
    assert answers(make_arms([record_of("ccl", None)])) == ["No accuracy was measured in these runs."]
    stopped = record_of("ccl", [[20, 20], [50, 30], None], names=("a", "b"), state="stopped")
    assert answers(make_arms([stopped])) == ["No run has reached the end of its stream yet."]


def test_the_price_is_time_storage_and_labels(record_of: Make) -> None:
    runs = [
        record_of(name, [[20], [80]], f"seed={seed}", names=["a"]) for name in ("finetuning", "ccl") for seed in (0, 1)
    ]
    for record in runs[2:]:
        record.status["stored_bytes"] = {"images": 1.5e6, "vectors": 0.5e6, "networks": 3e6}
        for row in record.rows:
            row["seconds"] = 5.0
    ccl = answers(make_arms(runs[2:]))[0]
    assert ccl.endswith(
        "; its price is 10 s of training, 5.0 MB stored beside the encoder and the number of classes from labels."
    )
    both = answers(make_arms(runs))[0]  # equal means: the first leads
    assert "its price is 2.5 s of training" in both
    assert "trained fastest" not in both  # the leader itself


def test_the_context_is_bounds_and_the_test_set(record_of: Make) -> None:
    steps = [{"name": "a", "num_test_images": 100}]
    runs = [record_of("ccl", [[40], [80]], names=["a"], steps=steps)]
    runs += [record_of("upper_bound", [[40], [100]], names=["a"], steps=steps)]
    bounds, random, size = context(make_arms(runs))
    assert (bounds, random) == ("All data at once: Upper Bound 50.0 %.", "Before training: 20.0 %.")
    assert size.startswith("Measured on 100 test images: another draw of them would change an accuracy by about ±5.0 ")
