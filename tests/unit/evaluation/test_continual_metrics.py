"""Forgetting, plasticity and Forward Transfer on matrices whose answers are worked by hand."""

import math

import numpy as np
import pytest
import torch

from ccl.evaluation import forgetting, forward_transfer, plasticity

# D_1: best 80 after step 1, ends at 70: 10. D_2: best 66 after step 2, ends at 65: 1. Mean 5.5.
MATRIX = [[80.0, 50.0, 40.0], [72.0, 66.0, 45.0], [70.0, 65.0, 90.0]]
RANDOM = [30.0, 20.0, 25.0]


def test_forgetting_by_hand() -> None:
    assert forgetting(MATRIX) == pytest.approx(5.5)


def test_the_best_may_come_before_the_dataset_was_seen() -> None:
    matrix = [[80.0, 69.0, 40.0], [72.0, 66.0, 45.0], [70.0, 65.0, 90.0]]  # D_2: 69 after step 1, ends at 65
    assert forgetting(matrix) == pytest.approx((10 + 4) / 2)


def test_gains_count_as_zero_not_as_negative_forgetting() -> None:
    matrix = [[50.0, 40.0], [60.0, 70.0]]  # D_1 rose: its best is its last
    assert forgetting(matrix) == 0.0


def test_forward_transfer_by_hand() -> None:
    # D_2 just before it is learned: 50 - 20; D_3: 45 - 25.
    assert forward_transfer(MATRIX, RANDOM) == pytest.approx((30 + 20) / 2)


def test_plasticity_is_the_mean_of_the_diagonal_and_needs_all_of_it() -> None:
    matrix = np.array(MATRIX)
    matrix[0, 2] = math.nan  # beside the diagonal
    assert plasticity(matrix) == pytest.approx((80 + 66 + 90) / 3)
    assert plasticity([[70.0]]) == 70.0
    matrix[1, 1] = math.nan
    with pytest.raises(ValueError, match="right after each dataset was learned must be known, but 1 of 3 are nan"):
        plasticity(matrix)


@pytest.mark.parametrize("form", [np.array, torch.tensor, lambda rows: rows])
def test_lists_arrays_and_tensors_are_one(form) -> None:
    assert forgetting(form(MATRIX)) == pytest.approx(5.5)
    assert forward_transfer(form(MATRIX), form(RANDOM)) == pytest.approx(25.0)
    assert isinstance(forgetting(form(MATRIX)), float)


def test_the_last_dataset_takes_no_part_in_forgetting() -> None:
    matrix = np.array(MATRIX)
    matrix[:, -1] = [99.0, 99.0, math.nan]
    assert forgetting(matrix) == pytest.approx(5.5)


def test_entries_of_the_future_may_be_unknown_for_forgetting() -> None:
    matrix = np.array(MATRIX)
    matrix[np.triu_indices(3, 1)] = math.nan
    assert forgetting(matrix) == pytest.approx(5.5)
    with pytest.raises(ValueError, match="just before"):
        forward_transfer(matrix, RANDOM)


def test_the_first_random_accuracy_may_be_unknown() -> None:
    assert forward_transfer(MATRIX, [math.nan, 20.0, 25.0]) == pytest.approx(25.0)


def test_one_step_has_neither() -> None:
    assert math.isnan(forgetting([[50.0]]))
    assert math.isnan(forward_transfer([[50.0]], [10.0]))


@pytest.mark.parametrize("wrong", [[], [1.0, 2.0], [[1.0, 2.0]], [[1.0], [2.0, 3.0]], [["a"]], np.zeros((2, 2, 2))])
def test_other_shapes_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="accurac"):
        forgetting(wrong)


def test_unknown_numbers_that_are_needed_are_refused() -> None:
    with pytest.raises(ValueError, match="after the last step"):
        forgetting([[80.0, 50.0], [math.nan, 60.0]])
    with pytest.raises(ValueError, match="random accuracies"):
        forward_transfer(MATRIX, [30.0, math.nan, 25.0])
    with pytest.raises(ValueError, match="random_accuracy"):
        forward_transfer(MATRIX, [30.0, 20.0])
