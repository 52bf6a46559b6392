"""How near a number of clusters comes to the number of classes: `python -m benchmarks.clusters RUN… [--steps 1,2,5]`.

RUN is a finished run folder. Its encoder embeds the training images of every step of its stream, or of the class stream
cut in so many steps, and each criterion names a number. docs/memory.md has the outcome.
"""

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.timing import Row
from ccl.encoders import extract
from ccl.loading import load_settings
from ccl.memory import estimate_num_clusters, group
from ccl.memory.clusters import drawn, grid
from ccl.reading import build_viewer
from ccl.runs.build import build_learner
from ccl.runs.folder_lock import SETTINGS
from ccl.runs.run_folder import ENCODER
from ccl.runs.stream_builder import build_stream
from ccl.seeding import generator

Groupings = Mapping[int, Tensor]  # by the number of groups, without 1: (n,)
Criterion = Callable[[Tensor, Groupings], int]  # unit rows (n, D) -> a number of clusters


def _best(values: Mapping[int, float]) -> int:
    return max(values, key=lambda count: values[count])


def modularity(rows: Tensor, groupings: Groupings) -> int:
    """What the library does."""
    return estimate_num_clusters(rows, 0)


def silhouette(rows: Tensor, groupings: Groupings) -> int:
    from sklearn.metrics import silhouette_score

    return _best({count: silhouette_score(rows, groups) for count, groups in groupings.items()})


def calinski_harabasz(rows: Tensor, groupings: Groupings) -> int:
    from sklearn.metrics import calinski_harabasz_score

    return _best({count: calinski_harabasz_score(rows, groups) for count, groups in groupings.items()})


def davies_bouldin(rows: Tensor, groupings: Groupings) -> int:
    from sklearn.metrics import davies_bouldin_score

    return _best({count: -davies_bouldin_score(rows, groups) for count, groups in groupings.items()})


def bic(rows: Tensor, groupings: Groupings) -> int:
    """X-means' criterion: round Gaussians of one variance, less half a log n for each parameter."""
    num, dim = rows.shape

    def score(count: int, groups: Tensor) -> float:
        sizes = torch.bincount(groups, minlength=count).clamp(min=1).double()
        variance = _inertia(rows, groups) / (dim * (num - count))
        likelihood = float((sizes * (sizes / num).log()).sum()) - num * dim / 2 * math.log(2 * math.pi * variance)
        return likelihood - dim * (num - count) / 2 - count * (dim + 1) / 2 * math.log(num)

    return _best({count: score(count, groups) for count, groups in groupings.items()})


def gap(rows: Tensor, groupings: Groupings) -> int:
    """How much tighter the groups are than those of one Gaussian cloud of the rows' mean and covariance."""
    draw = torch.randn(rows.shape, generator=generator(0, "gap"))
    spread, axes = torch.linalg.eigh(torch.cov(rows.T))
    cloud = F.normalize(draw * spread.clamp(min=0).sqrt() @ axes.T + rows.mean(0), dim=1)
    found = {}
    for count, groups in groupings.items():
        found[count] = math.log(_inertia(cloud, group(cloud, count, 0)) / _inertia(rows, groups))
    return _best(found)


def stability(rows: Tensor, groupings: Groupings) -> int:
    """Agreement (adjusted Rand index) of the groupings of two halves, both carried over to all rows."""
    from sklearn.metrics import adjusted_rand_score

    halves = torch.randperm(len(rows), generator=generator(0, "halves")).chunk(2)
    found = {}
    for count in groupings:
        told = []
        for half in halves:
            centres = _centres(rows[half], group(rows[half], count, 0))
            told.append(torch.cdist(rows, centres).argmin(1))
        found[count] = float(adjusted_rand_score(*told))
    return _best(found)


def effective_rank(rows: Tensor, groupings: Groupings) -> int:
    """exp of the entropy of the covariance's spectrum: how many directions the rows fill."""
    shares = torch.linalg.eigvalsh(torch.cov(rows.T)).clamp(min=1e-12)
    shares = shares / shares.sum()
    return round(math.exp(float(-(shares * shares.log()).sum())))


def always_ten(rows: Tensor, groupings: Groupings) -> int:
    """No criterion: what the others must beat."""
    return 10


CRITERIA: tuple[Criterion, ...] = (
    modularity,
    silhouette,
    calinski_harabasz,
    davies_bouldin,
    bic,
    gap,
    stability,
    effective_rank,
    always_ten,
)


def _centres(rows: Tensor, groups: Tensor) -> Tensor:
    return torch.stack([rows[groups == number].mean(0) for number in torch.unique(groups)])  # (k, D)


def _inertia(rows: Tensor, groups: Tensor) -> float:
    numbers = torch.unique(groups, return_inverse=True)[1]
    return float((rows - _centres(rows, groups)[numbers]).double().square().sum())


def estimates(embeddings: Tensor, criteria: tuple[Criterion, ...] = CRITERIA) -> dict[str, int]:
    """What each criterion says of unit rows (N, D)."""
    rows = drawn(embeddings, 0)
    groupings = {count: group(rows, count, 0, "count") for count in grid(len(rows)) if count > 1}
    return {criterion.__name__: criterion(rows, groupings) for criterion in criteria}


def embedded(folder: Path, assignments: list[str], kind: str) -> Iterator[tuple[str, int, Tensor]]:
    """Name, number of classes and unit rows of each step: by the run's encoder, by a random one, or the pixels."""
    settings = load_settings(str(folder / SETTINGS), [*assignments, "strategy=finetuning", "data.workers=0"])
    stream, device = build_stream(settings), torch.device("cpu")
    encoder, viewer = build_learner(settings, device).encoder, build_viewer(settings, device)
    if kind == "trained":
        encoder.load_state_dict(load_file(folder / ENCODER))
    for step, source in zip(stream.steps, stream.arrivals, strict=True):
        if kind == "pixels":
            rows = torch.cat(list(viewer.plain_batches(source, 512))).flatten(1)
            rows = F.normalize(rows - rows.mean(0), dim=1)
        else:
            rows = extract(encoder, source, viewer, output="embeddings")
        yield step.name, len(step.classes), rows


def planted(num_groups: int, noise: float, num_rows: int = 3000, dim: int = 64) -> Tensor:
    """Unit rows around random unit centres; noise is the length of what is added to a centre."""
    rng = np.random.default_rng(num_groups)
    centres = F.normalize(torch.from_numpy(rng.normal(size=(num_groups, dim))).float(), dim=1)
    around = torch.from_numpy(rng.normal(size=(num_rows, dim))).float() * noise / math.sqrt(dim)
    return F.normalize(centres[torch.arange(num_rows) % num_groups] + around, dim=1)


def clusters() -> Iterator[Row]:
    """Groups that are there are found; and the time for many rows, of which some are read."""
    errors = []
    for number in (2, 5, 10, 20, 50):
        errors += [abs(math.log2(estimate_num_clusters(planted(number, noise), 0) / number)) for noise in (0.5, 1.0)]
    yield Row("clusters: worst |log2(estimate ÷ planted)|, 2 to 50 groups", max(errors), 0.5, at_least=False)
    rows = planted(20, 1.0, num_rows=50_000, dim=128)
    started = time.perf_counter()
    estimate_num_clusters(rows, 0)
    yield Row("clusters: seconds for 50,000 embeddings", time.perf_counter() - started, 20.0, at_least=False)


def main() -> None:
    """Print a line for each step of each run, then each criterion's mean error by the number of classes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--steps", default="", help="cut the class stream in so many steps, e.g. 1,2,5")
    parser.add_argument("--rows", choices=["trained", "random", "pixels"], default="trained")
    parser.add_argument("--set", action="append", default=[], help="other settings of the stream, e.g. seed=1")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = [criterion.__name__ for criterion in CRITERIA]
    print(f"| run | step | images | classes | {' | '.join(names)} |\n|{'---|' * (4 + len(names))}")
    errors: dict[int, list[list[float]]] = defaultdict(list)  # by the number of classes: steps, criteria
    for folder in asked.runs:
        for cut in [[f"steps={steps}"] for steps in asked.steps.split(",") if steps] or [[]]:
            for step, truth, rows in embedded(folder, [*asked.set, *cut], asked.rows):
                told = estimates(rows)
                errors[truth].append([abs(math.log2(number / truth)) for number in told.values()])
                cells = [folder.name, step, len(rows), truth, *told.values()]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(f"\n| classes | steps: mean of abs(log2(estimate ÷ classes)) | {' | '.join(names)} |")
    print(f"|{'---|' * (2 + len(names))}")
    means = {truth: np.mean(errors[truth], axis=0) for truth in sorted(errors)}
    for truth, values in means.items():
        print(f"| {truth} | {len(errors[truth])} | {' | '.join(f'{value:.2f}' for value in values)} |")
    overall = np.mean(list(means.values()), axis=0)  # each number of classes counts once
    print(f"| mean of the lines | | {' | '.join(f'{value:.2f}' for value in overall)} |")


if __name__ == "__main__":
    main()
