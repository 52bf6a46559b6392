"""The accuracy matrix: what is recorded where, saved states and tables that read back exactly."""

import math

import pytest
import torch

from ccl.evaluation import AccuracyMatrix, ProbeResult, forgetting, forward_transfer


def result(first: float) -> ProbeResult:
    return ProbeResult((first, first + 1), (first + 2, first + 3), first + 4, "by hand")


def filled() -> AccuracyMatrix:
    matrix = AccuracyMatrix(2)
    matrix.record(None, result(10.0))
    matrix.record(0, result(100 / 3))
    return matrix


def same(first: AccuracyMatrix, second: AccuracyMatrix) -> bool:
    """Bit for bit, nan where the other has nan."""
    mine, theirs = first.state_dict(), second.state_dict()
    return mine.keys() == theirs.keys() and all(
        mine[name].shape == theirs[name].shape
        and torch.equal(mine[name].nan_to_num(nan=-1), theirs[name].nan_to_num(nan=-1))
        for name in mine
    )


def test_every_number_has_its_place() -> None:
    matrix = filled()
    matrix.record(1, result(50.0))
    assert matrix.per_step.tolist() == [[100 / 3, 100 / 3 + 1], [50.0, 51.0]]
    assert matrix.all_class[1].tolist() == [52.0, 53.0]
    assert matrix.all_class_total.tolist() == [100 / 3 + 4, 54.0]
    assert matrix.random_per_step.tolist() == [10.0, 11.0]
    assert matrix.random_all_class.tolist() == [12.0, 13.0]
    assert float(matrix.random_total) == 14.0
    assert forgetting(matrix.per_step) == 0.0
    assert forward_transfer(matrix.per_step, matrix.random_per_step) == pytest.approx(100 / 3 + 1 - 11)


def test_what_was_not_recorded_is_nan() -> None:
    matrix = filled()
    assert matrix.per_step[1].isnan().all()
    assert matrix.all_class_total.isnan().tolist() == [False, True]
    assert AccuracyMatrix(3).random_total.isnan()


def test_the_state_comes_back_and_is_a_copy() -> None:
    matrix, other = filled(), AccuracyMatrix(2)
    state = matrix.state_dict()
    other.load_state_dict(state)
    assert same(matrix, other)
    matrix.record(1, result(1.0))
    assert not same(matrix, other)
    assert state["per_step"][1].isnan().all()
    state["per_step"].zero_()
    assert other.per_step[0, 0] == 100 / 3


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    matrix, expected = filled(), filled()
    for state in (AccuracyMatrix(3).state_dict(), {}):
        with pytest.raises(ValueError, match="not of 2 steps"):
            matrix.load_state_dict(state)
    assert same(matrix, expected)


def test_the_table_reads_as_written(tmp_path) -> None:
    matrix = filled()
    matrix.to_csv(tmp_path / "accuracy.csv")
    lines = (tmp_path / "accuracy.csv").read_text().splitlines()
    assert lines[:6] == [
        "after,data,probe,accuracy",
        "0,1,per_step,10.0",
        "0,2,per_step,11.0",
        "0,1,all_class,12.0",
        "0,2,all_class,13.0",
        "0,all,all_class,14.0",
    ]
    assert lines[6] == f"1,1,per_step,{100 / 3!r}"
    assert len(lines) == 11  # nothing of step 2 yet
    assert [path.name for path in tmp_path.iterdir()] == ["accuracy.csv"]


def test_the_table_reads_back_exactly(tmp_path) -> None:
    draws = torch.Generator().manual_seed(0)
    matrix = AccuracyMatrix(12)  # two digits: steps are numbers, not text
    for row in (None, *range(7)):
        values = (100 * torch.rand(25, dtype=torch.float64, generator=draws)).tolist()
        matrix.record(row, ProbeResult(tuple(values[:12]), tuple(values[12:24]), values[24], "by hand"))
    matrix.record(7, ProbeResult((math.nan,) * 11 + (0.1 + 0.2,), (1.0,) * 12, math.nan, "by hand"))
    matrix.to_csv(tmp_path / "accuracy.csv")
    assert same(AccuracyMatrix.from_csv(tmp_path / "accuracy.csv"), matrix)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "after,data,probe,accuracy\n",
        "after,data,probe,accuracy\n1,1,per_step\n",
        "after,data,probe,accuracy\n1,1,per_step,high\n",
        "after,data,probe,accuracy\n2,1,per_step,5.0\n",
        "after,data,probe,accuracy\n1,0,per_step,5.0\n1,1,per_step,5.0\n",
        "after,data,probe,accuracy\n1,1,knn,5.0\n",
        "after,data,probe,accuracy\n1,1,per_step,5.0\n1,all,per_step,5.0\n",
    ],
)
def test_other_tables_are_refused(tmp_path, text) -> None:
    path = tmp_path / "accuracy.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"accuracy\.csv"):
        AccuracyMatrix.from_csv(path)


def test_results_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="3 accuracies"):
        AccuracyMatrix(3).record(0, result(1.0))
    with pytest.raises(ValueError, match="num_steps"):
        AccuracyMatrix(0)
