"""Facts of runs said once each, at the place where they are shared, and what runs cost."""

from collections.abc import Callable
from pathlib import Path

from ccl.report.provenance import facts_by_arm, run_facts
from ccl.report.run_groups import make_arms
from ccl.report.summary import costs
from ccl.report.tables import text
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]

ROWS = [[30, 32], [80, 40], [70, 84]]
NAMES = ("old", "new")


def runs_of(record_of: Make) -> list[RunRecord]:
    """Two arms of two seeds; the order of classes goes with the seed, the views with the strategy."""
    runs = []
    for strategy, views in (("ccl", "moco_cifar"), ("finetuning", "plain")):
        for seed in (0, 1):
            told = {"class_order": f"order {seed}", "views": views}
            folder = f"runs/{strategy}-{seed}"
            runs.append(record_of(strategy, ROWS, f"seed={seed}", names=NAMES, folder=folder, **told))
    return runs


def test_each_fact_stands_where_it_is_shared(record_of: Make) -> None:
    everywhere, found = facts_by_arm(make_arms(runs_of(record_of)))
    assert everywhere["torch"] == "2.6.0"
    assert everywhere["step 2"] == "new: 10 classes, 100 images"
    assert everywhere["probe protocol"] == "logistic regression"
    assert not {"seed", "class order", "views", "folder"} & everywhere.keys()
    assert [arm.facts for arm in found] == [{"views": "moco_cifar"}, {"views": "plain"}]
    runs = found[0].runs
    assert runs is not None
    assert runs.columns == ("Run", "folder", "class order", "seed")
    assert runs.rows == (("seed 0", "runs/ccl-0", "order 0", "0"), ("seed 1", "runs/ccl-1", "order 1", "1"))
    assert "strategy: ccl" in found[0].settings


def test_nothing_a_run_tells_is_lost_or_said_twice(record_of: Make) -> None:
    runs = runs_of(record_of)
    runs[3].status["reason"] = "disk full"  # a fact that only one run has
    arms = make_arms(runs)
    everywhere, found = facts_by_arm(arms)
    for arm, told in zip(arms, found, strict=True):
        assert told.runs is not None
        assert not everywhere.keys() & told.facts.keys()
        assert not (everywhere.keys() | told.facts.keys()) & set(told.runs.columns)
        for record, row in zip(arm.records, told.runs.rows, strict=True):
            own = {key: value for key, value in zip(told.runs.columns[1:], row[1:], strict=True) if value is not None}
            assert everywhere | told.facts | own == run_facts(record)


def test_one_run_has_only_facts_of_all(record_of: Make) -> None:
    everywhere, (only,) = facts_by_arm(make_arms([record_of("ccl", ROWS, names=NAMES)]))
    assert everywhere["seed"] == "0"
    assert only.facts == {}
    assert only.runs is None
    assert "strategy: ccl" in only.settings


def test_times_are_read_by_people(record_of: Make) -> None:
    record = record_of("ccl", ROWS, names=NAMES)
    record.status["started"] = 86_400 + 3_600.7
    record.rows.append({"kind": "paper_probe", "accuracy": 53.84})
    assert run_facts(record)["status: started"] == "1970-01-02 01:00:00 UTC"
    assert run_facts(record)["all classes by the paper's probe"] == "53.8 %"


def test_costs_by_hand(record_of: Make, tmp_path: Path) -> None:
    runs = [record_of("ccl", ROWS, f"seed={seed}", names=NAMES, folder=str(tmp_path / str(seed))) for seed in (0, 1)]
    for seed, run in enumerate(runs):
        run.status["peak_memory_bytes"] = 400_000_000 + seed * 20_000_000
        run.rows.extend([{"kind": "probe", "seconds": 2.0 + seed, "protocol": ""}] * 3)
        (run.folder / "checkpoints").mkdir(parents=True)
        (run.folder / "checkpoints/a").write_bytes(b"x" * 1_500_000)
        (run.folder / "b").write_bytes(b"x" * 500_000)
    table = costs(make_arms([*runs, record_of("finetuning", None, names=NAMES, folder=str(tmp_path / "none"))]))
    assert table.columns == ("Strategy", "Training (s)", "Probes (s)", "Peak memory (MB)", "On disk (MB)")
    # Four epochs of 1.25 s; probes of 6 and 9 s; 400 and 420 MB.
    assert [text(cell) for cell in table.rows[0]] == ["CCL", "5.0 ± 0.0", "7.5 ± 2.1", "410.0 ± 14.1", "2.0 ± 0.0"]
    assert [text(cell) for cell in table.rows[1]] == ["Finetuning", "5.0", "–", "–", "–"]
    assert "cpu, threads: 2." in table.note
