"""Weight rules and remembered statistics over whole streams: what is used, and that it resumes to the same bits."""

from pathlib import Path

import pytest
import torch
from breaking import assert_same, quiet, run_broken
from safetensors.torch import load_file
from tiny import Watcher, learn, same, tiny_settings

from ccl import run
from ccl.data import chain
from ccl.encoders import Encoder, extract
from ccl.encoders.batch_norm_statistics import reestimate
from ccl.reading import build_viewer
from ccl.runs.build import build_learner
from ccl.runs.stream_builder import build_stream
from ccl.training import Learner
from ccl.training import loop as loop_module

CPU = torch.device("cpu")
THREE = ("dataset=symbols,textures,greek", "epochs=1")


def test_a_share_of_one_is_as_without_the_rule() -> None:
    merged, merged_watch = learn(tiny_settings("strategy=merged_rehearsal", "merge.share=1"))
    plain, plain_watch = learn(tiny_settings("strategy=simple_rehearsal"))
    assert same(merged.encoder.state_dict(), plain.encoder.state_dict())
    assert merged.memory.files == plain.memory.files
    assert merged_watch.losses == plain_watch.losses


def test_the_average_leaves_the_student_alone() -> None:
    averaged, watch = learn(tiny_settings("strategy=weight_averaging"))
    plain, plain_watch = learn(tiny_settings("strategy=finetuning"))
    assert same(averaged.encoder.state_dict(), plain.encoder.state_dict())
    assert watch.losses == plain_watch.losses
    assert not same(averaged.product.state_dict(), averaged.encoder.state_dict())


def at_step_ends(learner: Learner, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """Copies of the student before and after the end of each step's training."""
    found: list[dict[str, torch.Tensor]] = []
    real = learner.end_step

    def noting() -> None:
        found.append({name: value.clone() for name, value in learner.encoder.state_dict().items()})
        real()
        found.append({name: value.clone() for name, value in learner.encoder.state_dict().items()})

    monkeypatch.setattr(learner, "end_step", noting)
    return found


def test_each_step_begins_where_the_merge_before_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings("strategy=weight_merging", "merge.share=0.25", *THREE)
    learner, watcher = build_learner(settings, CPU), Watcher()
    ends = at_step_ends(learner, watcher, monkeypatch)
    learn(settings, watcher, learner=learner)
    assert same(ends[0], ends[1])  # the first step
    for before, after, merged in ((ends[1], ends[2], ends[3]), (ends[3], ends[4], ends[5])):
        for name, _ in learner.encoder.named_parameters():
            expected = 0.75 * before[name].double() + 0.25 * after[name].double()
            torch.testing.assert_close(merged[name].double(), expected, rtol=1e-5, atol=1e-7)
            assert not torch.equal(merged[name], after[name])


@pytest.mark.parametrize("strategy", ["weight_merging", "weight_averaging"])
def test_what_is_used_has_statistics_of_its_own_weights(strategy: str) -> None:
    settings = tiny_settings(f"strategy={strategy}", *THREE)
    stream = build_stream(settings)
    learner, _ = learn(settings, stream=stream)
    assert_statistics_of(learner.product, stream.arrivals[-1])


def assert_statistics_of(encoder: Encoder, source: object) -> None:
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    reestimate(encoder, source, build_viewer(tiny_settings(), CPU), 7)  # type: ignore[arg-type]
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strategy", ["ccl", "finetuning", "weight_averaging"])
def test_remembered_statistics_are_those_of_the_memory_or_of_the_last_step(strategy: str) -> None:
    settings = tiny_settings(f"strategy={strategy}", "encoder.statistics=remembered", *THREE)
    stream = build_stream(settings)
    learner, _ = learn(settings, stream=stream)
    last = stream.arrivals[-1]
    assert_statistics_of(learner.product, learner.memory.source_like(last) if len(learner.memory) else last)


@pytest.mark.parametrize("statistics", ["remembered", "accumulated"])
def test_other_statistics_do_not_change_what_a_step_learns(statistics: str) -> None:
    """Training normalises by batches: without a memory or a teacher only what is evaluated differs."""
    running, _ = learn(tiny_settings("strategy=finetuning", *THREE))
    others, _ = learn(tiny_settings("strategy=finetuning", f"encoder.statistics={statistics}", *THREE))
    for name, parameter in running.encoder.named_parameters():
        assert torch.equal(parameter, others.encoder.get_parameter(name))
    assert not same(running.encoder.state_dict(), others.encoder.state_dict())


def test_accumulated_statistics_are_those_of_all_steps() -> None:
    """Exactly so in the first batch norm of weights that stand still; later ones saw through statistics of the time."""
    settings = tiny_settings(
        "strategy=finetuning", "encoder.statistics=accumulated", "optimizer.learning_rate=1e-30", *THREE
    )
    stream = build_stream(settings)
    learner, _ = learn(settings, stream=stream)
    first = next(part for part in learner.product.modules() if isinstance(part, torch.nn.BatchNorm2d))
    found = [first.running_mean.clone(), first.running_var.clone()]  # type: ignore[operator, union-attr]
    reestimate(learner.product, chain(stream.arrivals), build_viewer(settings, CPU), 7)
    torch.testing.assert_close(found, [first.running_mean, first.running_var], rtol=1e-4, atol=1e-6)


def test_the_average_is_selected_with(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[object] = []
    monkeypatch.setattr(
        "ccl.training.exemplar_selection.extract",
        lambda encoder, *rest: readers.append(encoder) or extract(encoder, *rest),
    )
    learner, _ = learn(tiny_settings("strategy=ccl", "weight_rule=average"))
    assert readers == [learner.product] * 2
    assert learner.product is not learner.encoder


def test_the_average_is_what_a_run_leaves(tmp_path: Path) -> None:
    settings = tiny_settings("strategy=weight_averaging")
    run(settings, tmp_path / "run", quiet())
    learner, _ = learn(settings)
    assert same(load_file(tmp_path / "run" / "encoder.safetensors"), learner.product.state_dict())


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=merged_rehearsal", "encoder.statistics=remembered"),
        ("strategy=ccl", "weight_rule=average", "encoder.statistics=remembered"),
        ("strategy=weight_merging",),
        ("strategy=feature_prediction", "encoder.statistics=accumulated"),
    ],
    ids=" ".join,
)
def test_rules_and_statistics_resume_to_the_same_bits(options: tuple[str, ...], tmp_path: Path) -> None:
    settings = tiny_settings(*options, *THREE, "checkpoint.minutes=1e-9")
    run(settings, tmp_path / "whole", quiet())
    run_broken(settings, tmp_path / "broken", [7, 7, 7, 7])
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_a_break_within_an_estimate_comes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings("strategy=merged_rehearsal", "encoder.statistics=remembered", "epochs=1")
    run(settings, tmp_path / "whole", quiet())
    with monkeypatch.context() as patch:
        calls = iter(range(2))

        def breaking(*arguments: object) -> None:
            reestimate(*arguments)  # type: ignore[arg-type]
            if next(calls, None) is None:
                raise KeyError

        patch.setattr(loop_module, "reestimate", breaking)
        with pytest.raises(KeyError):
            run(settings, tmp_path / "broken", quiet())
    run(settings, tmp_path / "broken", quiet())
    assert_same(tmp_path / "whole", tmp_path / "broken")
