"""What the ranks of a test do: plain functions of a module of its own, which a new process can import by its name."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file
from tiny import learn, tiny_settings
from torch import Tensor

from ccl import ranks, run
from ccl.catalogue import NEGATIVES, OBJECTIVES
from ccl.encoders import Encoder, extract
from ccl.encoders.batch_norm import normalised_over_ranks
from ccl.errors import UserError
from ccl.evaluation import fit_paper
from ccl.reading import build_viewer
from ccl.runs.build import build_learner
from ccl.runs.run_folder import ENCODER
from ccl.runs.stream_builder import Stream, build_stream
from ccl.seeding import permutation
from ccl.strategies import STRATEGIES
from ccl.training import loop
from ccl.training.update import GradientSync
from ccl.views import ViewBatch


def everyones_rows(count: int) -> Tensor:
    return torch.arange(float(count * 3)).view(count, 3).sin()


def gather_all(count: int) -> dict[str, Tensor]:
    """Even rows, uneven rows that the first rank has most of, and none at all."""
    rows, places = everyones_rows(count), torch.arange(count)
    mine = ranks.own(places)
    uneven, on_first = places <= ranks.size(), places % ranks.size() == 0
    order = permutation(places, 7)
    return {
        "even": ranks.gather(rows[mine]),
        "numbers": ranks.gather(mine),
        "uneven": ranks.gather(rows[mine][ranks.own(uneven)], uneven),
        "first only": ranks.gather(rows[mine][ranks.own(on_first)], on_first),
        "none": ranks.gather(rows[mine[:0]], places < 0),
        "together": ranks.gather_together([rows[mine], mine[:, None].float()]),
        "exchanged": ranks.exchange([rows[mine], mine[:, None].float()], order),
        "order": order,
    }


def gradient(count: int, is_uneven: bool) -> tuple[float, Tensor]:
    """The loss and averaged gradient of weights that meet every pair of rows, each rank embedding its own."""
    weights = everyones_rows(3).requires_grad_()
    mine = ranks.own(torch.arange(count))
    chosen = torch.arange(count) >= (2 if is_uneven else 0)  # of three ranks one then has fewer
    own = torch.tanh(everyones_rows(count)[mine[ranks.own(chosen)]] @ weights)
    found, _ = ranks.gather_together([own, own.detach()], chosen if is_uneven else None)
    loss = (found @ found.T).exp().mean()
    loss.backward()
    ranks.begin_average([weights.grad])()
    return float(loss.detach()), weights.grad


def normalised(rows: Tensor, owners: Tensor, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """Batch norm over the rows of all ranks, of which this one has its own; the averaged gradients of its own loss."""
    own = rows[owners == ranks.rank()].requires_grad_()
    scale, shift = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    found, mean, variance = normalised_over_ranks(own, scale, shift, 1e-5)
    (found.sin().sum() * (1 + ranks.rank())).backward()  # ranks have losses of their own
    gradients = [parameter.grad for parameter in (scale, shift) if parameter.grad is not None]
    ranks.begin_average(gradients)()
    about = {"rows": found.detach(), "mean": mean, "variance": variance, "input": own.grad}
    return about | dict(zip(("weight", "bias"), gradients, strict=True))


def synchronised(rows: Sequence[Tensor], combinations: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Rows, of which the first rank has more, and whole learners whose batch norm is one over all ranks."""
    about = []
    for part in rows:
        owners = (torch.arange(len(part)) % 3 == 2).long()
        channels = torch.linspace(0.5, 2.0, part.shape[1], dtype=part.dtype)
        about.append(normalised(part, owners, channels, channels - 1))
    return {"normalised": about, "learned": learn_all(combinations)}


def agreements() -> dict[str, Any]:
    number = ranks.rank()
    several = [torch.full((2, 2), float(number)), torch.tensor(10.0 * number)]
    ranks.begin_average(several)()
    return {
        "rank": number,
        "size": ranks.size(),
        "average": several,
        "largest": ranks.largest(number, -number, 7),
        "from first": ranks.from_first(lambda: {"rank": ranks.rank(), "rows": torch.arange(3)}),
        "refusal": _refusal(),
    }


def _refusal() -> str:
    try:
        return ranks.from_first(lambda: _refuse("no"))
    except UserError as error:
        return f"refused: {error}"


def _refuse(words: str) -> str:
    raise UserError(words)


@contextmanager
def in_double_precision() -> Iterator[None]:
    """All that learns, in float64. Batch norm over the few rows of a head amplifies float32's rounding in each update.

    Images stay what they are; `float` means `double` for everything that an encoder or an update computes.
    """
    with pytest.MonkeyPatch.context() as patch:
        build = tiny.build_learner
        for name in ("features", "tokens"):
            patch.setattr(Encoder, name, _of_doubled_images(getattr(Encoder, name)))
        patch.setattr(Encoder, "embed", _doubled(Encoder.embed))
        patch.setattr(tiny, "build_learner", lambda *arguments: build(*arguments).double())
        patch.setattr(loop, "update", _doubled(loop.update))
        yield


def _of_doubled_images(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, images, *others: _doubled(function)(self, images.double(), *others)


def _doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*arguments: Any, **options: Any) -> Any:
        usual = torch.get_default_dtype()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tensor, "float", Tensor.double)
            torch.set_default_dtype(torch.float64)
            try:
                return function(*arguments, **options)
            finally:
                torch.set_default_dtype(usual)

    return inner


# How many bytes a rank receives from others in a message, by its function and arguments; of a sum: what a ring brings.
RECEIVED: dict[str, Callable[..., float]] = {
    "all_reduce": lambda message, *_: 2 * (ranks.size() - 1) / ranks.size() * message.nbytes,
    "all_gather": lambda parts, message: (ranks.size() - 1) * message.nbytes,
    "all_to_all_single": lambda rows, _, counts, __: (len(rows) - counts[ranks.rank()]) * rows[:1].nbytes,
    "broadcast_object_list": lambda *_: 0,
}


@contextmanager
def counting_updates() -> Iterator[list[list[float]]]:
    """Inside, the bytes received in each message of every update are written down."""
    found: list[list[float]] = []
    update = loop.update

    def counted(*arguments: Any, **options: Any) -> dict[str, float]:
        found.append([])
        with pytest.MonkeyPatch.context() as patch:
            for name, size in RECEIVED.items():
                patch.setattr(torch.distributed, name, noting(getattr(torch.distributed, name), size))
            return update(*arguments, **options)

    def noting(send: Callable[..., Any], size: Callable[..., float]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            found[-1].append(size(*arguments))
            return send(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "update", counted)
        yield found


def learn_all(combinations: Sequence[tuple[str, ...]]) -> list[dict[str, Any]]:
    """Learn the tiny stream with each combination of settings; everything that must not depend on ranks."""
    found = []
    streams: dict[object, Stream] = {}  # building one takes longer than learning it
    for assignments in combinations:
        settings = tiny_settings(*assignments)
        kind = (STRATEGIES[settings.strategy].all_at_once, settings.memory.clusters)
        stream = streams.get(kind) or streams.setdefault(kind, build_stream(settings))
        # InsDisc's bank of random rows amplifies rounding too: on some CPUs a weight differed by 1.3e-3.
        is_steady = NEGATIVES in OBJECTIVES[settings.objective].gives and settings.objective != "insdisc"
        with nullcontext() if is_steady else in_double_precision(), counting_updates() as traffic:
            learner, watcher = learn(settings, stream=stream)
        about = {"losses": watcher.losses, "state": learner.state_dict(), "traffic": traffic}
        found.append(about | {"files": learner.memory.files, "ids": learner.memory.ids})
    return found


def learn_in_buckets(*assignments: str) -> dict[str, Any]:
    """Learn with gradients in many buckets; how many of them each backward pass sent before it ended."""
    early, finish = [], GradientSync.finish

    def noting(sync: GradientSync, losses: Tensor) -> None:
        early.append((len(sync.sent), len(sync.buckets)))
        finish(sync, losses)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientSync, "bucket_bytes", 4000)
        patch.setattr(GradientSync, "finish", noting)
        (found,) = learn_all([assignments])
    return found | {"early": early}


def images_met(*assignments: str) -> dict[tuple[int, int], list[int]]:
    """The ids of the images this rank has learned from, by step and epoch."""
    settings = tiny_settings(*assignments)
    learner = build_learner(settings, torch.device("cpu"))
    met: dict[tuple[int, int], list[int]] = defaultdict(list)
    real = learner.losses

    def noting(batch: ViewBatch, moment: tuple[int, int], done: float) -> Any:
        met[moment] += batch.ids.tolist()
        return real(batch, moment, done)

    learner.losses = noting  # type: ignore[method-assign]
    learn(settings, learner=learner)
    return dict(met)


def readings() -> dict[str, Tensor]:
    """Features of one image, which not every rank can have a share of, and of several; the paper's probe on these."""
    settings = tiny_settings("encoder.batch_norm_groups=6")
    source = build_stream(settings).arrivals[0]
    encoder, viewer = build_learner(settings, torch.device("cpu")).encoder, build_viewer(settings, torch.device("cpu"))
    found = {str(count): extract(encoder, source.subset(torch.arange(count)), viewer) for count in (1, 5, 7)}
    labels = torch.arange(len(source)) % 3
    return found | {"probe": fit_paper(encoder, source, labels, viewer, epochs=2, learning_rate=1.0).weights}


def foreign_networks(combinations: Sequence[tuple[str, ...]], start: tuple[str, ...], out: Path) -> dict[str, Any]:
    """Learn with networks of others, and run one that starts from weights, whose file only the first rank reads."""
    run(tiny_settings(*start), out)
    return {"learned": learn_all(combinations), "weights": load_file(out / ENCODER)}


def all_tasks(combinations: Sequence[tuple[str, ...]], groups: str) -> dict[str, Any]:
    """Everything in one go, as starting processes takes longer than most of it."""
    count = 2 * ranks.size()
    return {
        "gathered": gather_all(count),
        "gradients": [gradient(count, is_uneven) for is_uneven in (False, True)],
        "agreed": agreements(),
        "read": readings(),
        "met": images_met("strategy=ccl", groups),
        "learned": learn_all(combinations),
        "in buckets": [learn_in_buckets("strategy=ccl", groups, "epochs=1") for _ in range(2)],
        "in one message": learn_all([("strategy=ccl", groups, "epochs=1")])[0],
    }
