"""Weighted k-nearest-neighbour classification on frozen features, as InsDisc and MoCo's CIFAR demo do it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.evaluation.linear_probe import check_pairs


def knn_predict(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    num_neighbours: int = 200,
    temperature: float = 0.07,
    chunk_size: int = 128,
) -> Tensor:
    """The label (M,) with the most votes; a neighbour at cosine similarity s votes with weight exp(s / temperature).

    Labels may be any integers. With fewer than `num_neighbours` training rows all of them vote; a draw of votes goes
    to the smallest label. Which of several neighbours at the same k-th similarity votes is not defined.
    """
    check_pairs(train_features, train_labels)
    if num_neighbours < 1 or temperature <= 0 or chunk_size < 1:
        raise ValueError("num_neighbours, temperature and chunk_size must be positive")
    classes, targets = torch.unique(train_labels.cpu(), return_inverse=True)  # (C,), (N,)
    bank = F.normalize(train_features.cpu().float(), dim=1)  # (N, F)
    queries = F.normalize(test_features.cpu().float(), dim=1)  # (M, F)
    num_neighbours = min(num_neighbours, len(bank))
    predicted = torch.empty(len(queries), dtype=torch.long)  # (M,)
    # One buffer for all chunks: new ones of this size, with small results between, would leave holes in the heap.
    buffer = bank.new_empty(min(chunk_size, len(queries)), len(bank))
    for start in range(0, len(queries), chunk_size):
        chunk = queries[start : start + chunk_size]
        similarities = torch.mm(chunk, bank.T, out=buffer[: len(chunk)])  # (m, N)
        similarity, neighbours = similarities.topk(num_neighbours, dim=1, sorted=False)  # (m, k), (m, k)
        # Measured from the nearest one, so that a small temperature can't overflow; a common factor changes no vote.
        weights = ((similarity - similarity.amax(dim=1, keepdim=True)) / temperature).exp()  # (m, k)
        votes = torch.zeros(len(chunk), len(classes)).scatter_add_(1, targets[neighbours], weights)  # (m, C)
        predicted[start : start + chunk_size] = votes.argmax(dim=1)
    winners: Tensor = classes[predicted]  # (M,)
    return winners


def fair_voters(num_rows: int, num_classes: int, most: int = 200) -> int:
    """As many as a class has images, up to the usual 200: of a small set nearly all images would vote on each."""
    return max(1, min(most, num_rows // num_classes))


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    num_neighbours: int = 200,
    temperature: float = 0.07,
) -> float:
    """Share of test rows whose label wins the vote, in percent."""
    check_pairs(test_features, test_labels)
    predicted = knn_predict(train_features, train_labels, test_features, num_neighbours, temperature)
    return 100.0 * float((predicted == test_labels.cpu()).double().mean())
