"""Shorter number formats: where they act, what refuses them, and that a scaled run resumes to the bit.

Run here on a CPU only: autocast on CUDA and MPS was not.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from breaking import assert_same, quiet, run_broken
from networks import make_encoder
from tiny import Watcher, learn, tiny_settings
from torch import Tensor, nn

from ccl import run
from ccl.errors import UserError
from ccl.reading import build_device, uses_channels_last
from ccl.runs.build import build_learner, build_plan
from ccl.runs.stream_builder import build_stream
from ccl.training import NotFiniteError, Progress, precision
from ccl.training.precision import LossScaler, choose, trouble_with

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Plants a trial of a format; trials are remembered in a process, and planted ones must not be."""

    def plant(trial: str) -> None:
        trouble_with.cache_clear()
        monkeypatch.setattr(precision, "_TRIAL", trial)

    yield plant
    trouble_with.cache_clear()


def needs(name: str) -> None:
    trouble = trouble_with(name, "cpu")
    if trouble is not None:
        pytest.skip(f"{name} does not work on this CPU: {trouble}")


def test_auto_is_float32_on_a_cpu_and_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "trouble_with", lambda *_: pytest.fail("a trial was made"))
    assert choose("auto", CPU) is choose("float32", CPU) is choose("auto", torch.device("mps")) is torch.float32


@pytest.mark.parametrize("is_supported", [True, False])
def test_auto_on_cuda_takes_bfloat16_where_the_gpu_has_it(monkeypatch: pytest.MonkeyPatch, is_supported: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: is_supported)
    assert choose("auto", CUDA) is (torch.bfloat16 if is_supported else torch.float16)
    if is_supported:
        assert choose("bfloat16", CUDA) is torch.bfloat16
    else:
        with pytest.raises(UserError, match="no bfloat16; try precision=float16"):
            choose("bfloat16", CUDA)


@pytest.mark.parametrize(
    ("trial", "told"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "died of SIGILL"),
        ("import sys; sys.exit('no such kernel')", "failed: no such kernel"),
        ("raise SystemExit(3)", "failed: no word"),
        ("import time; time.sleep(60)", "did not end within 1 s"),
    ],
)
def test_a_format_whose_trial_dies_is_refused_with_advice_before_any_work(
    monkeypatch: pytest.MonkeyPatch, planted: Callable[[str], None], trial: str, told: str
) -> None:
    planted(trial)
    monkeypatch.setattr(precision, "_TRIAL_SECONDS", 1 if "sleep" in trial else 60)
    with pytest.raises(UserError, match=rf"^precision bfloat16 fails on this cpu: .*{told}; try precision=float32"):
        build_device(tiny_settings("precision=bfloat16", "device=cpu"))


def _formats(module: nn.Module) -> set[torch.dtype]:
    """Filled, as the module is used, with the formats its convolutions and linear layers give out."""
    seen: set[torch.dtype] = set()
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.register_forward_hook(lambda _, __, out: seen.add(out.dtype))
    return seen


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_student_key_encoder_and_teacher_compute_in_it_and_losses_stay_in_float32(name: str) -> None:
    needs(name)
    settings = tiny_settings("strategy=ccl", f"precision={name}")
    learner = build_learner(settings, CPU)
    parts = [learner.encoder, learner.objective.key_encoder.copy, learner.registered_parts["distillation"].teacher.copy]  # type: ignore[union-attr]
    seen = [_formats(part) for part in parts]
    given: set[torch.dtype] = set()
    losses = learner.losses

    def watched(*a: object) -> object:
        found, context = losses(*a)  # type: ignore[arg-type]
        given.update(loss.dtype for loss in found.values())
        given.update((context.contrast.query.dtype, context.contrast.keys.dtype))
        return found, context

    learner.losses = watched  # type: ignore[method-assign, assignment]
    learn(settings, learner=learner)
    assert seen == [{getattr(torch, name)}] * 3
    assert given == {torch.float32}
    assert {parameter.dtype for parameter in learner.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_learning_in_it_begins_near_float32(name: str) -> None:
    needs(name)
    _, exact = learn(tiny_settings("strategy=ccl"))
    _, short = learn(tiny_settings("strategy=ccl", f"precision={name}"))
    assert short.losses[0] != exact.losses[0]
    assert short.losses[0] == pytest.approx(exact.losses[0], rel=0.05)


@pytest.mark.parametrize("output", ["features", "forward"])
def test_what_an_encoder_gives_is_float32_and_near(output: str) -> None:
    needs("bfloat16")
    encoder, images = make_encoder("resnet18", width=8), torch.randn(8, 3, 16, 16)
    exact: Tensor = getattr(encoder, output)(images)
    encoder.compute_in(torch.bfloat16)
    short: Tensor = getattr(encoder, output)(images)
    assert short.dtype is torch.float32
    assert not torch.equal(short, exact)
    assert (short - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("backbone", ["resnet18", "convnet"])
def test_channels_last_changes_rounding_only(backbone: str, groups: int) -> None:
    images = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    first, last = (make_encoder(backbone, width=8, batch_norm_groups=groups) for _ in range(2))
    last.compute_in(torch.float32, channels_last=True)
    weights = [p for p in last.parameters() if p.ndim == 4 and p.shape[2] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
    target = torch.randn(128, generator=torch.Generator().manual_seed(1))
    given = []
    for encoder in (first, last):
        embeddings = encoder(images)
        (embeddings @ target).square().mean().backward()
        given.append([embeddings, *(p.grad for p in encoder.parameters() if p.grad is not None)])
    assert len(given[0]) > 10
    for one, other in zip(*given, strict=True):
        assert torch.allclose(one, other, atol=1e-5 * max(1.0, float(one.detach().abs().max())))
    assert first.state_dict().keys() == last.state_dict().keys()


def test_channels_last_follows_device_precision_and_groups_and_can_be_asked_for() -> None:
    learner = build_learner(tiny_settings(), CPU)
    assert learner.encoder.channels_last
    assert learner.objective.key_encoder.copy.channels_last  # type: ignore[union-attr]
    split = tiny_settings("encoder.batch_norm_groups=2")
    assert not uses_channels_last(tiny_settings(), CUDA, torch.float32)
    assert uses_channels_last(tiny_settings(), CUDA, torch.bfloat16)
    assert not uses_channels_last(split, CPU, torch.float32)
    narrow = ("encoder.backbone=resnet18", "encoder.width=4")  # torch 2.13 corrupts memory there
    assert not uses_channels_last(tiny_settings(*narrow), CPU, torch.float32)
    with pytest.raises(UserError, match=r"channels_last=true needs encoder.width 8 or more, got 4"):
        tiny_settings(*narrow, "performance.channels_last=true")
    assert uses_channels_last(tiny_settings("performance.channels_last=true"), CUDA, torch.float32)
    assert not uses_channels_last(tiny_settings("performance.channels_last=false"), CPU, torch.float32)


def test_an_optimizer_s_state_is_loaded_in_the_memory_format_of_its_weights() -> None:
    settings = tiny_settings("strategy=finetuning")
    learner, _ = learn(settings)
    plan, progress = build_plan(settings), Progress(epoch=1)
    optimizer = progress.take(plan.make_optimizer(learner))
    for parameter in learner.encoder.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    saved = {name: value.contiguous() for name, value in progress.state_dict().items()}  # as a checkpoint holds it
    loaded = Progress.restored(progress.position(), saved).take(plan.make_optimizer(learner))
    for parameter in learner.encoder.parameters():
        mine, theirs = (one.state[parameter]["momentum_buffer"] for one in (loaded, optimizer))
        assert torch.equal(mine, theirs)
        assert mine.stride() == parameter.stride()


def _small_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale that moves within a few updates, both ways."""
    small = functools.partial(torch.amp.GradScaler, init_scale=2.0**40, growth_interval=3)
    monkeypatch.setattr(torch.amp, "GradScaler", small)


def test_an_overflow_lowers_the_scale_and_moves_nothing_and_its_state_goes_round() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer, scaler = torch.optim.SGD([weight], 0.5), LossScaler("cpu")
    torch.autograd.backward(scaler.scaled(weight.sum()))
    assert weight.grad.item() == 65536
    assert scaler.unscale(optimizer)
    assert weight.grad.item() == 1
    torch.autograd.backward(scaler.scaled(weight.sum() * float("inf")))
    assert not scaler.unscale(optimizer)
    assert scaler.get_extra_state().tolist() == [32768, 0]
    optimizer.zero_grad()
    torch.autograd.backward(scaler.scaled(weight.sum()))
    assert scaler.unscale(optimizer)
    other = LossScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_extra_state().tolist() == [32768, 1]
    assert other.scaled(torch.ones(())).item() == 32768


def test_only_float16_has_a_scale_in_its_state() -> None:
    needs("float16")
    for name, keys in (("float32", set()), ("float16", {"scaler._extra_state"})):
        state = build_learner(tiny_settings(f"precision={name}"), CPU).state_dict()
        assert {key for key in state if "scaler" in key} == keys


def test_a_scaled_run_broken_off_comes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("float16")
    _small_scaler(monkeypatch)
    settings = tiny_settings("strategy=ccl", "precision=float16", "checkpoint.minutes=1e-9", "epochs=4")
    run(settings, tmp_path / "whole", quiet())
    run_broken(settings, tmp_path / "broken", [7, 8, 9, 7])
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_gradients_that_no_scale_can_save_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("float16")
    settings = tiny_settings("precision=float16", "epochs=40")
    learner = build_learner(settings, CPU)
    next(learner.encoder.parameters()).register_hook(lambda gradient: gradient * float("inf"))
    before = {name: value.clone() for name, value in learner.encoder.named_parameters()}
    watcher = Watcher()
    with pytest.raises(NotFiniteError, match=r"the gradient of encoder.backbone.* is not finite"):
        learn(settings, watcher, stream=build_stream(settings), learner=learner)
    assert 10 < len(watcher.losses) < 20  # 65536 halved until it is below 1
    assert all(torch.equal(value, before[name]) for name, value in learner.encoder.named_parameters())


@pytest.mark.slow
def test_a_compiled_learner_has_the_same_names_and_nearly_the_same_losses(tmp_path: Path) -> None:
    settings = tiny_settings("strategy=ccl", "performance.compile=true", "epochs=1")
    try:
        learner, compiled = learn(settings)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        pytest.skip(f"no compiler here: {type(error).__name__}")
    plain, exact = learn(tiny_settings("strategy=ccl", "epochs=1"))
    assert learner.state_dict().keys() == plain.state_dict().keys()
    assert compiled.losses[0] == pytest.approx(exact.losses[0], rel=1e-4)
