"""Strategies and objectives that have neither a title nor a style: readable names, distinct colours, a whole report."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ccl.catalogue import title_of
from ccl.report.run_page import HEADINGS, write_outcome
from ccl.report.tables import text
from ccl.runs.run_folder import RunRecord
from ccl.strategies import strategy_title

Make = Callable[..., RunRecord]
Keep = Callable[..., None]

ROWS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]


def with_objective(record: RunRecord, objective: str) -> RunRecord:
    return replace(record, settings=record.settings.model_copy(update={"objective": objective}))


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("my_method", "My Method"),
        ("zz_new", "Zz New"),
        ("myICaRL_v2", "MyICaRL V2"),
        ("a|b_c", "a|b_c"),
        ("_", "_"),
        ("", ""),
    ],
)
def test_a_name_without_a_title_is_made_readable(name: str, title: str) -> None:
    assert strategy_title(name) == title
    assert title_of(name) == title


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # no settings model knows the objective
def test_a_report_of_unknown_names_has_every_table_and_figure(
    record_of: Make, keep_images: Keep, keep_embeddings: Keep, tmp_path: Path
) -> None:
    records = []
    for seed in (0, 1):
        rows = [ROWS[0], *([value + seed for value in row] for row in ROWS[1:])]
        for size in (8, 64, 256):
            folder = tmp_path / f"runs/zz_new-{size}-{seed}"
            changes = (f"seed={seed}", f"extra_sample_queue.size={size}")
            records.append(record_of("zz_new", rows, *changes, folder=str(folder)))
            keep_embeddings(folder, [0, 10, 90, 180], [1, 1, 2, 3])
            keep_images(folder, [0.1, 0.2])
        records.append(record_of("finetuning", ROWS, f"seed={seed}"))
        records.append(record_of("upper_bound", [ROWS[0], None, None, ROWS[3]], f"seed={seed}"))
    records = [with_objective(record, "zz_objective") for record in records]
    records.append(record_of("zz_new", ROWS, "extra_sample_queue.size=64"))
    tables = write_outcome(records, tmp_path / "out", "New", name="new")
    names = [text(row[0]) for row in tables[0].rows]
    own = [f"Zz New, Zz Objective, extra_sample_queue.size={size}" for size in (8, 64, 256)]
    assert {*own, "Zz New, MoCoV2, extra_sample_queue.size=64", "Finetuning, Zz Objective"} < set(names)
    page = (tmp_path / "out/new.html").read_text(encoding="utf-8")
    for section in HEADINGS:
        assert f'<section id="{section}">' in page
    assert ">Zz New, Zz Objective</text>" in page  # the sweep's legend
    for suffix in ("md", "tex"):
        assert "Zz New, Zz Objective" in (tmp_path / f"out/new.{suffix}").read_text(encoding="utf-8")
    assert "zz_new,zz_objective," in (tmp_path / "out/new-runs.csv").read_text(encoding="utf-8")
