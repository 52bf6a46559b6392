"""Which network is probed: what is exported, or the teacher that a strategy distils from."""

from pathlib import Path

from breaking import assert_same, quiet, run_broken
from tiny import tiny_settings

from ccl.compatibility import matters
from ccl.report.provenance import stamp
from ccl.runs import run
from ccl.runs.build import build_device, build_learner
from ccl.runs.run_folder import RunRecord
from ccl.strategies import STRATEGIES

OF_TEACHER = ("strategy=ccl", "probe.network=teacher")


def probed(record: RunRecord) -> list[dict[str, object]]:
    """What was measured before training and after each step; the rank of the embedding tells networks apart."""
    keys = ("per_step", "all_class_total", "effective_rank")
    return [{key: row[key] for key in keys} for row in record.rows if row["kind"] == "probe"]


def test_figures_are_those_of_the_network_that_is_asked_for(tmp_path: Path) -> None:
    """With momentum 0 the teacher is the student at the end of a step, with 1 it is the student at its beginning."""
    product = run(tiny_settings("strategy=ccl", "distillation.momentum=0.0"), tmp_path / "product", quiet())
    moved = run(tiny_settings(*OF_TEACHER, "distillation.momentum=0.0"), tmp_path / "moved", quiet())
    still = run(tiny_settings(*OF_TEACHER, "distillation.momentum=1.0"), tmp_path / "still", quiet())
    random, first, second = probed(product)
    assert len({float(str(row["effective_rank"])) for row in (random, first, second)}) == 3
    assert probed(moved) == [random, first, second]
    assert probed(still) == [random, random, first]
    assert [stamp(record)["probed network"] for record in (product, still)] == ["product", "teacher"]


def test_a_run_of_the_teacher_resumes_to_the_same_figures(tmp_path: Path) -> None:
    settings = tiny_settings(*OF_TEACHER, "checkpoint.minutes=1e-9")
    whole = run(settings, tmp_path / "whole", quiet())
    run_broken(settings, tmp_path / "broken", [5, 7])
    assert_same(tmp_path / "whole", tmp_path / "broken")
    assert len(probed(whole)) == 3


def test_the_catalogue_says_which_parts_have_a_teacher() -> None:
    found = set()
    for name in STRATEGIES:
        settings = tiny_settings(f"strategy={name}")
        teacher = build_learner(settings, build_device(settings)).teacher
        found |= {name} if teacher is not None else set()
        assert (teacher is not None) == matters("probe.network", name, "moco_v2")
    assert found == {"variance_distillation", "ccl", "random_ccl"}
