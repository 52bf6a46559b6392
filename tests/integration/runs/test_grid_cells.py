"""The cells of a grid: every combination that is a run of its own, under a name that stays its own."""

import pytest

from ccl.errors import UserError
from ccl.runs.grid_cells import Cell, Grid, make_cells
from ccl.strategies import STRATEGIES, Strategy

ALL = ("finetuning", "simple_rehearsal", "ccl", "upper_bound")


def cells(
    strategies: tuple[str, ...] = ("ccl",),
    preset: str = "cifar100-mini",
    assignments: tuple[str, ...] = (),
    **given: object,
) -> list[Cell]:
    axes: dict[str, object] = {"seeds": [0], **given}
    return make_cells(Grid(preset, strategies, **axes), assignments)  # type: ignore[arg-type]


def names(made: list[Cell]) -> list[str]:
    return [cell.name for cell in made]


def test_seeds_come_outermost_then_steps_objectives_and_strategies() -> None:
    made = cells(("finetuning", "ccl"), objectives=["simclr", "moco_v2"], steps=[5, 10], seeds=[3, 1])
    assert names(made)[:6] == [
        "finetuning-simclr-T5-seed3",
        "ccl-simclr-T5-seed3",
        "finetuning-moco_v2-T5-seed3",
        "ccl-moco_v2-T5-seed3",
        "finetuning-simclr-T10-seed3",
        "ccl-simclr-T10-seed3",
    ]
    assert [cell.seed for cell in made] == [3] * 8 + [1] * 8
    assert (made[5].row, made[5].seed) == ("CCL, SimCLR, T = 10", 3)
    told = [(cell.settings.strategy, cell.settings.objective, cell.settings.steps) for cell in made]
    assert told[5] == ("ccl", "simclr", 10)
    assert {cell.settings.seed for cell in made} == {1, 3}


def test_empty_axes_are_as_the_preset_says() -> None:
    assert names(cells(preset="demo")) == ["ccl-moco_v2-seed0"]  # the demo names no number of steps
    assert names(cells(preset="demo", assignments=["objective=simclr", "steps=5"])) == ["ccl-simclr-T5-seed0"]
    assert cells(preset="demo")[0].row == "CCL"


def test_a_strategy_without_a_title_has_a_readable_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "zz_new", Strategy())
    (cell,) = cells(("zz_new",))
    assert (cell.name, cell.row) == ("zz_new-moco_v2-T5-seed0", "Zz New")


def test_upper_bound_does_not_depend_on_the_number_of_steps() -> None:
    made = cells(ALL, steps=[10, 5])
    assert [cell.name for cell in made if "upper" in cell.name] == ["upper_bound-moco_v2-T10-seed0"]
    assert len(made) == 7
    assert made[3].row == "Upper Bound"


def test_the_preset_s_own_value_is_no_part_of_a_name() -> None:
    made = cells(vary={"extra_sample_queue.size": ["32", "64"]}, assignments=["extra_sample_queue.size=64"])
    assert names(made) == ["ccl-moco_v2-T5-seed0-extra_sample_queue.size=32", "ccl-moco_v2-T5-seed0"]
    assert [cell.row for cell in made] == ["CCL, extra_sample_queue.size = 32", "CCL, extra_sample_queue.size = 64"]
    assert [cell.settings.extra_sample_queue.size for cell in made] == [32, 64]


def test_a_name_does_not_depend_on_what_else_is_in_the_grid_nor_on_the_spelling() -> None:
    small = cells(vary={"temperature": ["0.2"]})
    large = cells(ALL, seeds=[0, 1], vary={"weights.distillation": ["0.1", "3e-1"], "temperature": ["2.0e-1", "0.5"]})
    assert names(small) == ["ccl-moco_v2-T5-seed0-temperature=0.2"]
    same = [cell for cell in large if cell.name == small[0].name]
    assert len(same) == 1
    assert same[0].settings == small[0].settings
    both = cells(vary={"weights.distillation": ["0.3"], "temperature": ["0.2"]})
    assert names(both) == ["ccl-moco_v2-T5-seed0-temperature=0.2-weights.distillation=0.3"]
    assert both == cells(vary={"temperature": ["0.2"], "weights.distillation": ["0.3"]})


@pytest.mark.parametrize(
    ("key", "values", "looking"),
    [
        ("memory.per_cluster", ["5", "10"], {"simple_rehearsal", "variance_distillation", "ccl"}),
        ("distillation.momentum", ["0.9", "0.5"], {"variance_distillation", "ccl"}),
        ("weights.distillation", ["0.2", "0.3"], {"variance_distillation", "ccl"}),
        ("weights.contrast", ["0.2", "0.3"], {"variance_distillation", "ccl"}),
        ("extra_sample_queue.size", ["8", "9"], {"ccl"}),
        ("weights.extra_sample_queue", ["0.2", "0.3"], {"ccl"}),
        ("byol.momentum", ["0.2", "0.3"], set()),
        ("epochs", ["7", "8"], {*ALL, "variance_distillation"}),
    ],
)
def test_who_ignores_a_setting_has_one_cell_with_the_preset_s_value(
    key: str, values: list[str], looking: set[str]
) -> None:
    made = cells((*ALL, "variance_distillation"), vary={key: values})
    found = [cell.settings.strategy for cell in made]
    assert {name for name in found if found.count(name) == 2} == looking
    for cell in made:
        assert (key in cell.name) == (cell.settings.strategy in looking)
        assert (key in cell.row) == (cell.settings.strategy in looking)


def test_names_are_safe_file_names() -> None:
    made = cells(preset="demo", vary={"data.root": ["/a b/ü", "null"], "data.classes": ["[x,y]"]})
    assert names(made) == [
        "ccl-moco_v2-seed0-data.classes=_x_y_-data.root=_a_b_",
        "ccl-moco_v2-seed0-data.classes=_x_y_",
    ]
    with pytest.raises(UserError, match="would share the folder"):
        cells(vary={"data.root": ["/a b", "/a/b"]})


def test_what_is_given_twice_is_one_cell() -> None:
    assert len(cells(("ccl", "ccl"), seeds=[1, 1], vary={"epochs": ["7", "7"]})) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"strategies": ("ccl", "finetunning")}, "unknown strategy 'finetunning'; did you mean 'finetuning'?"),
        ({"preset": "cifar100-mina"}, "did you mean 'cifar100-mini'?"),
        ({"objectives": ["simclr", "simcrl"]}, "objective"),
        ({"steps": [5, 0]}, "steps"),
        ({"vary": {"extra_sample_queue.sise": ["3"]}}, "did you mean 'extra_sample_queue.size'?"),
        ({"vary": {"memory": ["3"]}}, "unknown setting 'memory'"),
        ({"vary": {"epochs": ["3", "many"]}}, "epochs: "),
        ({"vary": {"seed": ["3"]}}, "--vary seed: give --seeds instead"),
        ({"assignments": ["seed=3"]}, "--set seed=3: a grid takes it from --seeds"),
        ({"assignments": ["steps=3"], "steps": [5]}, "--set steps=3: a grid takes it from --steps"),
    ],
)
def test_a_mistake_in_any_cell_is_told_at_once(given: dict[str, object], told: str) -> None:
    with pytest.raises(UserError) as caught:
        cells(**given)  # type: ignore[arg-type]
    assert told in str(caught.value)
