"""Runs whose images stay in shards: broken off in the middle of one, with other numbers of workers, the same bits."""

from pathlib import Path

import pytest
from breaking import assert_same, quiet, run_broken
from in_ranks import in_ranks
from made_shards import labelled_tars
from rank_tasks import images_met
from tiny import tiny_settings

from ccl import run
from ccl.settings import Settings


def assignments_for(folder: Path) -> tuple[str, ...]:
    """Two steps of pictures that are decoded anew for every view: without data.resize nothing is held in memory."""
    return (
        *("dataset=shards:part-{000..002}.tar", f"data.root={folder}", "data.resize=null", "data.classes=null"),
        *("data.images_per_class=null", "views.size=16", "steps=2", "batch_size=6", "epochs=1"),
    )


def settings_for(folder: Path, *assignments: str) -> Settings:
    return tiny_settings(*assignments_for(folder), *assignments)


def test_a_run_broken_in_the_middle_of_a_shard_resumes_to_the_same_bits(tmp_path: Path) -> None:
    labelled_tars(tmp_path)
    settings = settings_for(tmp_path, "checkpoint.minutes=0.0000001")  # after every update
    run(settings, tmp_path / "whole", quiet())
    run_broken(settings, tmp_path / "broken", [2])
    assert_same(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit(tmp_path: Path) -> None:
    labelled_tars(tmp_path)
    run(settings_for(tmp_path), tmp_path / "none", quiet())
    run(settings_for(tmp_path, "data.workers=2"), tmp_path / "two", quiet())
    assert_same(tmp_path / "none", tmp_path / "two")


@pytest.mark.slow
def test_ranks_share_the_images_out(tmp_path: Path) -> None:
    labelled_tars(tmp_path)
    assignments = (*assignments_for(tmp_path), "strategy=finetuning", "encoder.batch_norm_groups=2")
    alone = images_met(*assignments)
    first, second = in_ranks(2, images_met, *assignments, folder=tmp_path)
    assert {moment: sorted(first[moment] + second[moment]) for moment in alone} == {
        moment: sorted(ids) for moment, ids in alone.items()
    }
    assert all(first.values())
    assert all(second.values())
