"""Parts of one's own, named by their path: read, checked and refused as those of the catalogue are."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ccl.settings as settings_module
from ccl import catalogue
from ccl.catalogue import COMPOSITIONS, OBJECTIVES, RETENTION, WEIGHT_RULES, part_name, title_of
from ccl.errors import UserError
from ccl.loading import dump_settings, load_settings, read_settings
from ccl.runs.build import build_learner
from ccl.runs.grid_cells import Grid, make_cells
from ccl.settings import Settings, differences, own_defaults

OWN = """
import ccl.settings as settings_module
from ccl import catalogue
from ccl.catalogue import NEGATIVES
from ccl.composition import Pooled
from ccl.objectives import SimCLR
from ccl.part import Retention
from ccl.section import Count, Section

class AlignViews(SimCLR):
    gives = frozenset({NEGATIVES})
    class Options(Section):
        hidden: Count = 64
    def __init__(self, options: Options, *, temperature: float) -> None:
        super().__init__(temperature=temperature)
        self.options = options

class Recall(Retention):
    weight = 0.25
    def loss(self, context):
        return None

class Share(Pooled): ...

class NoDefault(Pooled):
    class Options(Section):
        every: Count

def first(ids, count): ...
def of_anything(ids): ...
"""
SMALL = ("encoder.width=4", "encoder.dim=8", "encoder.batch_norm_groups=1", "strategy=simple_rehearsal")


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_file.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    forget()


def forget() -> None:
    """What was imported of the file of another test."""
    sys.modules.pop("my_file", None)
    importlib.invalidate_caches()
    catalogue._own_row.cache_clear()
    settings_module._class_with.cache_clear()


@pytest.mark.parametrize(
    ("path", "name"),
    [("my_file:Align", "align"), ("a.b.MyHTTPPart", "my_http_part"), ("moco_v2", "moco_v2"), ("timm:vit", "timm:vit")],
)
def test_a_part_at_a_path_is_called_as_its_class(path: str, name: str) -> None:
    assert part_name(path) == name


def test_its_options_weight_and_facts_are_those_of_its_class(tmp_path: Path) -> None:
    asked = ["objective=my_file:AlignViews", "align_views.hidden=32", "retention=my_file:Recall", "weights.recall=2"]
    settings = load_settings("demo", [*SMALL, *asked])
    learner = build_learner(settings, torch.device("cpu"))
    assert learner.objective.options.hidden == 32
    assert learner.parts.keys() == {"recall"}
    assert learner.weights["recall"] == 2
    assert load_settings("demo", [*SMALL, asked[2]]).weights.recall == 0.25
    assert settings == Settings(**settings.model_dump())
    assert title_of("my_file:AlignViews") == "Align Views"
    # It gives negatives, so that the extra sample queue goes with it.
    load_settings("demo", ["strategy=ccl", asked[0]])
    (tmp_path / "settings.yaml").write_text(dump_settings(settings))
    assert read_settings(tmp_path / "settings.yaml") == settings
    other = load_settings("demo", [*SMALL, *asked, "align_views.hidden=16", "weights.recall=1"])
    assert differences(settings, other) == ["weights.recall: 2.0 -> 1.0", "align_views.hidden: 32 -> 16"]


def test_what_a_folder_holds_is_read_where_the_file_is_gone(tmp_path: Path) -> None:
    settings = load_settings("demo", [*SMALL, "objective=my_file:AlignViews", "retention=my_file:Recall"])
    (tmp_path / "settings.yaml").write_text(dump_settings(settings))
    (tmp_path / "my_file.py").unlink()
    forget()
    read = read_settings(tmp_path / "settings.yaml")
    assert read.model_dump() == settings.model_dump()
    assert own_defaults("my_file:AlignViews", "ccl") == {}
    with pytest.raises(UserError, match="can't import my_file"):
        build_learner(read, torch.device("cpu"))


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("objective=my_fil:Align", "objective my_fil:Align: can't import my_fil (ModuleNotFoundError: No module named"),
        ("objective=my_fil:Align", "it must be installed, or its folder be on PYTHONPATH"),
        ("objective=my_file:AlignView", "my_file has no Objective class 'AlignView'; did you mean 'AlignViews'?"),
        ("objective=my_file:Recall", "my_file has no Objective class 'Recall'"),
        ("retention=my_file:AlignViews", "my_file has no Retention class 'AlignViews'; there are Recall"),
        ("weight_rule=my_file:Recall", "my_file has no WeightRule class 'Recall'"),
        ("composition=my_file:Share", "there is a setting or part called share; give the class another name"),
        ("composition=my_file:NoDefault", "each of its options needs a default"),
        ("memory.selection=os:remove", "os has no function 'remove'"),
        ("memory.selection=my_file:of_anything", "it must take count, and by their names some of embeddings"),
        ("align_views.hidden=3", "unknown setting 'align_views'"),
    ],
)
def test_what_is_no_part_is_refused_in_one_line(assignment: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        load_settings("demo", [*SMALL, assignment])
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("hidden", ["hiden=3", "hidden=0"])
def test_options_of_one_s_own_are_checked(hidden: str) -> None:
    with pytest.raises(UserError, match=r"align_views\.hid") as caught:
        load_settings("demo", [*SMALL, "objective=my_file:AlignViews", f"align_views.{hidden}"])
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", [*OBJECTIVES, *RETENTION, *COMPOSITIONS, *WEIGHT_RULES])
def test_an_option_has_the_same_default_in_python_and_in_the_shell(name: str) -> None:
    rows = {**OBJECTIVES, **RETENTION, **COMPOSITIONS, **WEIGHT_RULES}
    options = getattr(rows[name].load(), "Options", None)
    section = getattr(Settings(), name, None)
    assert section == (options() if options else None)


def test_a_grid_varies_its_options_where_it_is_the_objective() -> None:
    varied = {"align_views.hidden": ["8", "16"]}
    grid = Grid("demo", ["finetuning"], [0], ["moco_v2", "my_file:AlignViews"], vary=varied)
    assert [cell.name for cell in make_cells(grid)] == [
        "finetuning-moco_v2-seed0",
        "finetuning-my_file_AlignViews-seed0-align_views.hidden=8",
        "finetuning-my_file_AlignViews-seed0-align_views.hidden=16",
    ]
    with pytest.raises(UserError, match=r"unknown setting 'align_views.hiden'; did you mean 'align_views.hidden'"):
        make_cells(replace(grid, vary={"align_views.hiden": ["8"]}))
