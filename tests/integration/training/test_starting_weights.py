"""Runs that start from weights: what they know is the past of the first step, and everything resumes to the bit."""

import json
from pathlib import Path
from typing import Any

import networks
import pytest
import rank_tasks
import torch
from in_ranks import in_ranks
from safetensors.torch import save_file
from tiny import TINY, Watcher, learn, same, tiny_settings

from ccl.encoders.stages import stages
from ccl.errors import UserError
from ccl.loading import load_settings
from ccl.runs.build import build_learner, build_plan, build_start, resolved
from ccl.runs.one_run import run
from ccl.runs.stream_builder import build_stream

CPU = torch.device("cpu")
VIT = ("encoder.backbone=networks:SmallViT", "encoder.width=8", "views.size=16")
CNN = ("encoder.backbone=networks:SmallCNN", "encoder.width=4", "views.size=16")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return networks.save_vit(tmp_path / "vit.safetensors")


@pytest.fixture(scope="module")
def stream() -> Any:
    return build_stream(tiny_settings())


def test_the_start_is_the_past_of_the_first_step(weights: Path, stream: Any) -> None:
    settings = resolved(tiny_settings(*VIT, "strategy=pfr", f"encoder.weights={weights}"))
    start = build_start(settings)
    assert "missing 0, unexpected 0" in start.line
    learner = build_learner(settings, CPU, start.tensors)
    began = {name: value.clone() for name, value in learner.encoder.backbone.state_dict().items()}
    assert same(began, {name.removeprefix("backbone."): value for name, value in start.tensors.items()})
    watcher = Watcher()
    learn(settings, watcher, learner=learner, stream=stream)
    assert all("predictive_distillation" in losses for losses in watcher.losses)
    from_nothing = Watcher()
    learn(tiny_settings(*VIT, "strategy=pfr"), from_nothing, stream=stream)
    assert "predictive_distillation" not in from_nothing.losses[0]
    assert "predictive_distillation" in from_nothing.losses[-1]


def test_the_extra_sample_queue_fills_where_no_image_is_old_yet(weights: Path, stream: Any) -> None:
    settings = tiny_settings(*VIT, "strategy=ccl", f"encoder.weights={weights}")
    learner = build_learner(settings, CPU)
    before = learner.parts["extra_sample_queue"].queue.vectors.clone()
    learn(settings, learner=learner, stream=stream, arrivals=stream.arrivals[:1])
    assert not torch.equal(learner.parts["extra_sample_queue"].queue.vectors, before)


def test_merging_with_the_start(weights: Path, stream: Any) -> None:
    settings = tiny_settings(*VIT, "strategy=weight_merging", f"encoder.weights={weights}", "merge.share=0")
    start = build_start(settings)
    learner, _ = learn(settings, learner=build_learner(settings, CPU, start.tensors), stream=stream)
    now = learner.encoder.state_dict()
    assert all(torch.equal(now[name], value) for name, value in start.tensors.items())  # nothing of the steps stays


def test_normalisation_and_size_are_the_network_s_own(weights: Path) -> None:
    bare = [name for name in TINY if not name.startswith("data.resize")]
    settings = load_settings("demo", [*bare, VIT[0], "views.size=null", f"encoder.weights={weights}"])
    recipe = resolved(settings).views.to_recipe()
    assert (recipe.mean, recipe.std, recipe.size) == ((0.5, 0.4, 0.3), (0.25, 0.5, 0.125), 16)
    mine = resolved(tiny_settings(*VIT, "views.mean=[0.1,0.1,0.1]")).views.to_recipe()
    assert (mine.mean, mine.std) == ((0.1, 0.1, 0.1), (0.25, 0.5, 0.125))
    ours = tiny_settings()
    assert resolved(ours) is ours
    save_file(
        networks.SmallViT().state_dict(), weights, {"ccl": json.dumps({"preprocessing": {"mean": [0.9, 0.8, 0.7]}})}
    )
    assert resolved(tiny_settings(*VIT, f"encoder.weights={weights}")).views.to_recipe().mean == (0.9, 0.8, 0.7)


@pytest.mark.parametrize(
    ("assignments", "says"),
    [
        (["encoder.weights=pretrained"], "ccl ships no weights for convnet; .* timm:convnet"),
        ([*VIT, "encoder.weights=pretrained"], "networks:SmallViT takes no argument 'pretrained'"),
        ([*VIT[:2], "views.size=20"], "can't read images of 20×20 pixels"),
        ([*VIT, "encoder.weights=absent.pt"], "absent.pt: there is no such file"),
        ([*CNN, "encoder.weights={weights}"], "is not of networks:SmallCNN: of its 10 tensors 0 are in it"),
        (["encoder.options.depth=3"], "encoder.options are for backbones of others"),
        (["encoder.freeze_batch_norm=true", "encoder.statistics=remembered"], "set encoder.statistics=running"),
        (["encoder.freeze_stages=7"], "this backbone has 4 stages; nearest valid value: 4"),
    ],
)
def test_what_can_t_start_is_refused_before_any_work(
    assignments: list[str], says: str, weights: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError, match=says) as refusal:
        run(tiny_settings(*[text.format(weights=weights) for text in assignments]), out)
    assert "\n" not in str(refusal.value)
    assert not (out / "metrics.jsonl").exists()


def test_layer_decay_gives_early_stages_a_lower_rate() -> None:
    settings = tiny_settings(
        *VIT, "optimizer.layer_decay=0.5", "optimizer.learning_rate=0.8", "encoder.freeze_stages=1"
    )
    learner, plan = build_learner(settings, CPU), build_plan(settings)
    optimizer = plan.make_optimizer(learner)
    plan.set_rate(optimizer, 0)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    backbone = dict(learner.encoder.backbone.named_parameters())
    found = [{rates.get(id(backbone[name])) for name in stage.parameters} for stage in stages(learner.encoder.backbone)]
    assert found == [{None}, {0.1}, {0.2}, {0.4}]  # the stem is frozen: not in the optimizer
    assert {rates[id(parameter)] for parameter in learner.encoder.head.parameters()} == {0.8}
    assert len(build_plan(tiny_settings()).make_optimizer(build_learner(tiny_settings(), CPU)).param_groups) == 1


@pytest.mark.parametrize("backbone", [VIT, CNN], ids=["vit", "cnn"])
def test_a_stopped_run_resumes_to_the_same_bits_without_its_weights_file(
    backbone: tuple[str, ...], weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backbone is CNN:
        save_file(networks.SmallCNN().state_dict(), weights)
    frozen = ("encoder.freeze_stages=1", "encoder.freeze_batch_norm=true")
    more = ("optimizer.layer_decay=0.7", *frozen, "probe.after=last")
    settings = tiny_settings(*backbone, "strategy=predictive_rehearsal", f"encoder.weights={weights}", *more)
    run(settings, tmp_path / "whole")

    class Stop(Watcher):
        def updated(self, *arguments: Any) -> None:
            super().updated(*arguments)
            if len(self.losses) == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "broken", Stop())
    said = json.loads((tmp_path / "broken/protocol.json").read_text())["weights"]
    assert said.startswith("weights: loaded")
    weights.unlink()
    run(settings, tmp_path / "broken")
    assert json.loads((tmp_path / "broken/protocol.json").read_text())["weights"] == said
    whole, broken = ((tmp_path / name / "encoder.safetensors").read_bytes() for name in ("whole", "broken"))
    assert whole == broken
    assert run(settings, tmp_path / "whole").accuracy is not None  # complete: nothing to do, whatever was filled in


def test_two_ranks_with_networks_of_others_equal_one_process(tmp_path: Path, weights: Path) -> None:
    groups = "encoder.batch_norm_groups=2"
    combinations = [(*VIT, "strategy=pfr", groups), (*CNN, "strategy=ccl", groups, "encoder.freeze_stages=1")]
    start = (*VIT, "strategy=pfr", groups, f"encoder.weights={weights}", "probe.after=never")
    alone = rank_tasks.foreign_networks(combinations, start, tmp_path / "alone")
    both = in_ranks(2, rank_tasks.foreign_networks, combinations, start, tmp_path / "both", folder=tmp_path)
    for found in both:
        for mine, theirs in zip(alone["learned"], found["learned"], strict=True):
            assert mine["files"] == theirs["files"]
            assert near(mine["state"], theirs["state"])
        assert near(alone["weights"], found["weights"])


def near(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(value.double(), second[name].double(), atol=2e-5) for name, value in first.items())
