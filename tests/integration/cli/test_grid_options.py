"""Values of a grid's options: lists, ranges and `all`, and the pairs that are left out."""

from dataclasses import replace

import pytest

from ccl.catalogue import OBJECTIVES
from ccl.cli.value_lists import assignment_lists, named, names, numbers
from ccl.errors import RefusedError, UserError
from ccl.runs.grid_cells import Grid, make_cells
from ccl.strategies import STRATEGIES, refusal


def test_names() -> None:
    assert names("a, b,,a", "--strategies") == ["a", "b"]
    with pytest.raises(UserError, match="--strategies takes names joined by commas; got ' ,'"):
        names(" ,", "--strategies")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-5,8", [0, 1, 2, 3, 4, 5, 8]),
        ("7", [7]),
        ("3-3", [3]),
        (" 2 , 0-1", [2, 0, 1]),
        ("0-2,1-3", [0, 1, 2, 3]),
        ("007", [7]),
    ],
)
def test_numbers(text: str, expected: list[int]) -> None:
    assert numbers(text, "--seeds") == expected


@pytest.mark.parametrize("text", ["x", "", "1,", "-1", "5-0", "1-", "1.5", "0-5-8", "²", "0-999999999999", "1" * 5000])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        numbers(text, "--seeds")
    assert str(caught.value) == f"--seeds takes numbers and ranges such as 0-5 or 0,2,7; got {text!r}"


def test_assignment_lists() -> None:
    assert assignment_lists(["memory.per_cluster=5, 20,5"]) == {"memory.per_cluster": ["5", "20"]}
    assert assignment_lists(["data.classes=[a,b],[c],3"]) == {"data.classes": ["[a,b]", "[c]", "3"]}
    assert assignment_lists(["data.root=a=b,c"]) == {"data.root": ["a=b", "c"]}
    assert assignment_lists(["epochs=1,2", "seed=3"]) == {"epochs": ["1", "2"], "seed": ["3"]}
    with pytest.raises(UserError, match="--vary names epochs twice"):
        assignment_lists(["epochs=1", "epochs=2"])


@pytest.mark.parametrize("text", ["epochs", "=3", "epochs=", "epochs=1,,2"])
def test_no_assignment_list(text: str) -> None:
    with pytest.raises(UserError, match="--vary takes a setting and its values"):
        assignment_lists([text])


def test_all_is_all_that_are_known() -> None:
    assert named("all", "--strategies", {"a": 1, "b": 2}) == ["a", "b"]
    assert named("b, x", "--strategies", {"a": 1, "b": 2}) == ["b", "x"]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """SimCLR as an objective without negatives."""
    monkeypatch.setitem(OBJECTIVES, "simclr", replace(OBJECTIVES["simclr"], gives=frozenset()))


def cells(strategies: str, objectives: str | None, *assignments: str) -> list[tuple[str, str]]:
    chosen, learned = named(strategies, "--strategies", STRATEGIES), named(objectives, "--objectives", OBJECTIVES)
    grid = Grid("demo", chosen, [0], learned, leaves_out="all" in (strategies, objectives))
    return [(cell.settings.strategy, cell.settings.objective) for cell in make_cells(grid, assignments, print)]


def test_all_pairs_that_go_together_are_run(silent: None, capsys: pytest.CaptureFixture[str]) -> None:
    found = cells("all", "all")
    expected = [(s, o) for o in OBJECTIVES for s in STRATEGIES if not refusal(s, STRATEGIES[s], o)]
    assert found == expected
    assert ("upper_bound", "simclr") in found
    assert ("ccl", "simclr") not in found
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(STRATEGIES) * len(OBJECTIVES) - len(expected)
    assert "left out: CCL with SimCLR, as extra_sample_queue needs negatives, and objective simclr has none" in lines


def test_settings_of_all_runs_count_too(capsys: pytest.CaptureFixture[str]) -> None:
    found = {strategy for strategy, _ in cells("all", None, "composition=share")}
    assert found == {name for name, row in STRATEGIES.items() if row.selection}
    assert "left out: Finetuning with MoCoV2, as share needs a memory, and strategy finetuning has none" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("assignment", "left_out"), [("predictive_distillation.images=old", {"cassle", "pfr", "feature_prediction"})]
)
def test_what_a_part_needs_as_it_is_set_counts_too(assignment: str, left_out: set[str]) -> None:
    kept = {strategy for strategy, _ in cells("all", "insdisc", assignment)}
    assert kept == STRATEGIES.keys() - left_out


def test_what_was_asked_for_by_name_is_refused(silent: None) -> None:
    with pytest.raises(RefusedError, match="extra_sample_queue needs negatives"):
        cells("finetuning,ccl", "simclr")


def test_other_mistakes_and_nothing_left_are_refused(silent: None) -> None:
    with pytest.raises(UserError, match="epochs") as caught:
        cells("all", None, "epochs=x")
    assert not isinstance(caught.value, RefusedError)
    with pytest.raises(UserError, match="no strategy goes together with its objective here: extra_sample_queue needs"):
        make_cells(Grid("demo", ["ccl"], [0], ["simclr"], leaves_out=True))
