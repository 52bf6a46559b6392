"""Which images are kept."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccl.memory import group, lowest_scores, lowest_view_variance, random_draw, view_variance


def test_variance_is_unbiased_and_summed_over_dimensions() -> None:
    views = torch.randn(4, 6, 5, dtype=torch.float64)
    for image in range(4):
        total = 0.0
        for d in range(5):
            values = [float(v) for v in views[image, :, d]]
            mean = sum(values) / 6
            total += sum((value - mean) ** 2 for value in values) / 5
        assert float(view_variance(views)[image]) == pytest.approx(total, rel=1e-5)


def test_the_lowest_variance_of_each_cluster_is_kept() -> None:
    spread = torch.tensor([0.5, 0.1, 0.3, 0.2, 0.9, 0.05])
    views = torch.stack([torch.zeros(6, 3), torch.stack([spread, torch.zeros(6), torch.zeros(6)], 1)], dim=1)  # (6,2,3)
    clusters = torch.tensor([0, 0, 0, 1, 1, 1])
    assert lowest_view_variance(views, clusters, 2).tolist() == [1, 2, 3, 5]


def test_a_small_cluster_is_taken_whole_and_the_budget_topped_up() -> None:
    scores = torch.tensor([0.4, 0.1, 0.3, 0.2, 0.9])
    clusters = torch.tensor([0, 0, 0, 0, 1])
    assert lowest_scores(scores, clusters, 2).tolist() == [1, 2, 3, 4]  # 1, 3 of cluster 0; 4; then 2


def by_hand(scores: Tensor, clusters: Tensor, per_cluster: int) -> list[int]:
    chosen: set[int] = set()
    for cluster in set(clusters.tolist()):
        members = [i for i in range(len(scores)) if clusters[i] == cluster]
        chosen |= set(sorted(members, key=lambda i: (float(scores[i]), i))[:per_cluster])
    rest = sorted(set(range(len(scores))) - chosen, key=lambda i: (float(scores[i]), i))
    missing = per_cluster * len(set(clusters.tolist())) - len(chosen)
    return sorted(chosen | set(rest[:missing]))


@settings(deadline=None, max_examples=80)
@given(data=st.data(), num=st.integers(1, 25), per_cluster=st.integers(0, 6))
def test_selection_against_a_naive_one(data: st.DataObject, num: int, per_cluster: int) -> None:
    scores = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=num, max_size=num)), dtype=torch.float32)
    clusters = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=num, max_size=num)))
    assert lowest_scores(scores, clusters, per_cluster).tolist() == by_hand(scores, clusters, per_cluster)


def test_k_means_finds_separate_groups_and_repeats_itself() -> None:
    centres = torch.eye(3).repeat_interleave(20, 0)
    rows = centres + 0.05 * torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    clusters = group(rows, 3, 0, 1)
    assert all(len(set(clusters[k * 20 : k * 20 + 20].tolist())) == 1 for k in range(3))
    assert len(set(clusters.tolist())) == 3
    assert torch.equal(clusters, group(rows, 3, 0, 1))
    with pytest.raises(ValueError, match="61 clusters"):
        group(rows, 61, 0)


def test_a_random_draw_is_without_replacement() -> None:
    drawn = random_draw(50, 20, 0, 3)
    assert len(set(drawn.tolist())) == 20
    assert drawn.tolist() == sorted(drawn.tolist())
    assert random_draw(5, 20, 0).tolist() == [0, 1, 2, 3, 4]
    assert not torch.equal(drawn, random_draw(50, 20, 0, 4))


_FULL_SIZE = """
import numpy as np, torch
import torch.nn.functional as F
from ccl.memory import group, lowest_scores
from ccl.runs.session import peak_memory

generator = torch.Generator().manual_seed(0)
centres = F.normalize(torch.randn(100, 128, generator=generator), dim=1)
truth = torch.arange(128_000) % 100
rows = F.normalize(centres[truth] + 0.05 * torch.randn(128_000, 128, generator=generator), dim=1)
scores = torch.rand(128_000, generator=generator)
clusters = group(rows, 100, 0, 0)
kept = lowest_scores(scores, clusters, 20)
chosen = np.zeros(128_000, dtype=bool)
for cluster in np.unique(clusters.numpy()):
    members = np.flatnonzero(clusters.numpy() == cluster)
    chosen[members[np.argsort(scores.numpy()[members], kind="stable")[:20]]] = True
pure = sum(len(truth[clusters == cluster].unique()) == 1 for cluster in clusters.unique())
print(len(kept), int((np.flatnonzero(chosen) == kept.numpy()).all()), pure)
print(peak_memory() // 2**20)  # not getrusage: a child inherits its parent's peak there
"""


@pytest.mark.slow
def test_a_step_of_imagenet_full_is_selected_in_bounded_memory() -> None:
    """128,000 embeddings, 100 clusters: 62 MB of rows, in a process that starts with some 350 MB of libraries."""
    done = subprocess.run([sys.executable, "-c", _FULL_SIZE], capture_output=True, text=True, check=True)
    num_kept, is_right, num_pure, peak = (int(word) for word in done.stdout.split())

    assert (num_kept, is_right) == (2000, 1)
    assert num_pure >= 70  # K-Means finds most of the planted groups
    assert peak < 1000  # MB
