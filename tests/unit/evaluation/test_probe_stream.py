"""One row of the matrix: what is fitted on what, tested on what, and how often images are read."""

import pytest
import torch
from torch import Tensor, nn

from ccl.data.image_sources import ArraySource
from ccl.encoders import Embedded
from ccl.evaluation import ProbePart, embed_evenly, knn_accuracy, probe_stream

# Two steps of two classes. Colour 0 … 255 of the first channel tells classes within each step, but class 2 of step 2
# looks exactly like class 0 of step 1, and the second channel is the same everywhere.
COLOURS = {0: 40, 1: 200, 2: 40, 3: 120}


class Counting:
    def __init__(self) -> None:
        self.num_read = 0

    def plain_batches(self, source, batch_size):
        for positions in torch.arange(len(source)).split(batch_size):
            self.num_read += len(positions)
            yield source.read(positions).float() / 255


class Colours(nn.Module):
    num_features = 3

    def features(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))

    def embed(self, images: Tensor) -> Embedded:
        features = self.features(images)
        return Embedded(features, features, nn.functional.normalize(features, dim=1))

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(images).unit


def images_of(labels: list[int]) -> ArraySource:
    images = torch.zeros(len(labels), 3, 2, 2, dtype=torch.uint8)
    images[:, 0] = torch.tensor([COLOURS[label] for label in labels], dtype=torch.uint8)[:, None, None]
    images[:, 1] = 100
    return ArraySource(images)


def part(train: list[int], test: list[int]) -> ProbePart:
    return ProbePart(images_of(train), torch.tensor(train), images_of(test), torch.tensor(test))


# Class 0 outnumbers class 2 in training, so that the all-class probe calls their common colour 0.
PARTS = [part([0] * 9 + [1] * 9, [0, 0, 0, 1]), part([2] * 3 + [3] * 9, [2, 3, 2, 3, 2, 2, 2, 2])]


def test_accuracies_by_hand() -> None:
    result = probe_stream(Colours(), PARTS, Counting(), batch_size=5)
    assert result.per_step == (100.0, 100.0)  # each step by itself is separable
    assert result.all_class == (100.0, 25.0)  # of step 2 only the two images of class 3
    assert result.all_class_total == pytest.approx((4 + 2) / 12 * 100)  # by images, not the mean of 100 and 25
    assert "cached" in result.protocol


def test_each_image_is_read_once_for_all() -> None:
    viewer = Counting()
    probe_stream(Colours(), PARTS, viewer, num_health_images=5)
    assert viewer.num_read == 18 + 4 + 12 + 8


@pytest.mark.parametrize("num", [4, 12])
def test_health_is_of_the_embeddings_of_test_images_at_even_distances(num: int) -> None:
    health = probe_stream(Colours(), PARTS, Counting(), num_health_images=num).health
    some = embed_evenly(Colours(), PARTS, Counting(), num)
    labels = torch.cat([part.test_labels for part in PARTS])
    expected = labels[[0, 4, 7, 11]] if num == 4 else labels
    assert torch.equal(some.labels, expected)
    colours = torch.tensor([[float(COLOURS[label]), 100.0] for label in expected.tolist()])
    unit = nn.functional.normalize(colours, dim=1)
    assert health.mean_cosine == pytest.approx(float(((unit @ unit.T).sum() - num) / (num * (num - 1))), abs=1e-5)


def test_as_many_neighbours_vote_as_a_class_has_images() -> None:
    """35 here: the 30 images of class 5 that are exactly the test's, and 5 of the 40 of class 6 that are near it."""
    angles = torch.tensor([0.0] * 30 + [0.15] * 40)
    rows = torch.stack([angles.cos(), angles.sin(), torch.zeros(70)], dim=1)
    source = ArraySource((255 * rows).round().to(torch.uint8)[:, :, None, None].expand(-1, -1, 2, 2).contiguous())
    labels = torch.tensor([5] * 30 + [6] * 40)
    result = probe_stream(
        Colours(), [ProbePart(source, labels, source.subset(torch.arange(2)), labels[:2])], Counting()
    )
    assert result.knn_total == 100.0
    assert knn_accuracy(rows, labels, rows[:2], labels[:2], 200) == 0.0  # all 70: 30 against 40 e^(-0.16)


def test_progress_is_told_to_the_end() -> None:
    told: list[tuple[int, int]] = []
    probe_stream(Colours(), PARTS, Counting(), on_progress=lambda done, total: told.append((done, total)))
    assert told == [(number, 8) for number in range(1, 9)]
