"""The number of groups without labels."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.memory import clusters as clusters_module
from ccl.memory import estimate_num_clusters
from ccl.memory.clusters import grid, modularity, nearest_neighbours


def planted(num_groups: int, num_rows: int = 480, noise: float = 0.4) -> Tensor:
    draw = torch.Generator().manual_seed(num_groups)
    centres = F.normalize(torch.randn(num_groups, 32, generator=draw), dim=1)
    around = noise * torch.randn(num_rows, 32, generator=draw) / 32**0.5
    return F.normalize(centres[torch.arange(num_rows) % num_groups] + around, dim=1)


def test_the_grid_is_geometric_and_leaves_eight_rows_a_group() -> None:
    assert grid(4000) == [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256]
    assert grid(10**6) == grid(4000)
    assert grid(64) == [1, 2, 3, 4, 6, 8]
    assert grid(63) == [1, 2, 3, 4, 6]
    assert grid(1) == [1]


def test_neighbours_are_the_most_similar_others() -> None:
    rows = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.3], [0.0, 1.0]]), dim=1)
    assert nearest_neighbours(rows, 2).tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]


def test_modularity_by_its_definition() -> None:
    draw = torch.Generator().manual_seed(0)
    nearest = torch.stack([torch.randperm(11, generator=draw)[:4] + 1 for _ in range(12)])
    nearest = (nearest + torch.arange(12)[:, None]) % 12  # four others of each
    clusters = torch.randint(3, (12,), generator=draw)
    joined = [[0.0] * 12 for _ in range(12)]
    for row in range(12):
        for other in nearest[row].tolist():
            joined[row][other] += 1
            joined[other][row] += 1
    degrees = [sum(line) for line in joined]
    total = sum(degrees)
    expected = sum(
        (joined[i][j] - degrees[i] * degrees[j] / total) / total
        for i in range(12)
        for j in range(12)
        if clusters[i] == clusters[j]
    )
    assert modularity(nearest, clusters) == pytest.approx(expected)
    assert modularity(nearest, torch.zeros(12, dtype=torch.long)) == pytest.approx(0.0)


def test_groups_that_are_closed_have_one_less_their_share() -> None:
    clusters = torch.arange(20) // 4
    nearest = torch.stack([torch.tensor([i // 4 * 4 + k for k in range(4) if i // 4 * 4 + k != i]) for i in range(20)])
    assert modularity(nearest, clusters) == pytest.approx(1 - 1 / 5)


@pytest.mark.parametrize("num_groups", [2, 3, 4, 6, 8, 16])
def test_groups_that_are_there_are_counted(num_groups: int) -> None:
    assert estimate_num_clusters(planted(num_groups), 0, 3) == num_groups


def test_a_number_between_those_of_the_grid_is_one_beside_it() -> None:
    assert estimate_num_clusters(planted(5), 0) in (4, 6)
    assert estimate_num_clusters(planted(20), 0) in (16, 23)


def test_the_same_rows_give_the_same_number_whatever_torch_drew_before() -> None:
    rows = F.normalize(torch.randn(300, 16, generator=torch.Generator().manual_seed(1)), dim=1)
    first = estimate_num_clusters(rows, 7, 1)
    torch.rand(5)
    assert estimate_num_clusters(rows.clone(), 7, 1) == first


@pytest.mark.filterwarnings("error")  # K-Means warns where there are fewer distinct rows than groups
def test_rows_that_are_alike_and_few_rows_are_one_group() -> None:
    assert estimate_num_clusters(torch.full((100, 4), 0.5), 0) == 1
    assert estimate_num_clusters(planted(4, num_rows=15), 0) == 1
    assert estimate_num_clusters(planted(1, num_rows=1), 0) == 1
    assert estimate_num_clusters(planted(2).round(decimals=0)[:2].repeat(50, 1), 0) == 2


def test_of_many_rows_some_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read, real = [], clusters_module.group
    monkeypatch.setattr(clusters_module, "MOST_ROWS", 200)
    monkeypatch.setattr(clusters_module, "group", lambda rows, *about: read.append(len(rows)) or real(rows, *about))
    assert estimate_num_clusters(planted(8, num_rows=3000), 0) == 8
    assert set(read) == {200}
