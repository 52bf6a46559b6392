"""Extraction: order, outputs, and that a pass leaves no trace in the network."""

import pytest
import torch
from networks import make_encoder
from torch import Tensor, nn

from ccl.data.image_sources import ArraySource
from ccl.encoders import evaluating, extract, extract_both


class PlainPixels:
    """Stands for `ccl.views.Viewer` without augmentation."""

    def plain_batches(self, source, batch_size):
        for positions in torch.arange(len(source)).split(batch_size):
            yield source.read(positions).float() / 255


class Net(nn.Module):
    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.frozen = nn.BatchNorm2d(3).eval()  # a part that evaluates while the rest trains
        self.drop = nn.Dropout(0.5)
        self.fails = fails

    def features(self, images: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("broken")
        return self.drop(self.frozen(self.norm(images))).flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.normalize(self.features(images)[:, :5], dim=1)


def make_source(count: int = 11) -> ArraySource:
    return ArraySource(
        torch.randint(0, 256, (count, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    )


def test_rows_are_the_plain_images_features_in_order() -> None:
    source, net = make_source(), Net().train()
    rows = extract(net, source, PlainPixels(), batch_size=4)
    # Fresh batch norms in evaluation mode divide by sqrt(1 + eps) each; dropout does nothing.
    expected = source.images.float().flatten(1) / 255 / (1 + 1e-5)
    torch.testing.assert_close(rows, expected)
    assert rows.dtype == torch.float32
    assert not rows.requires_grad


def test_embeddings_are_the_forward_pass() -> None:
    rows = extract(Net(), make_source(), PlainPixels(), batch_size=4, output="embeddings")
    assert rows.shape == (11, 5)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(11))


def test_one_forward_gives_both() -> None:
    encoder, source = make_encoder("convnet", width=4, dim=6, seed=0), make_source()
    encoder.features(source.images.float())  # other statistics than a fresh batch norm's
    features, embeddings = extract_both(encoder, source, PlainPixels(), batch_size=4)
    assert torch.equal(features, extract(encoder, source, PlainPixels(), batch_size=4))
    assert torch.equal(embeddings, extract(encoder, source, PlainPixels(), batch_size=4, output="embeddings"))
    assert (features.shape, embeddings.shape) == ((11, 32), (11, 6))


def test_half_precision_comes_back_as_float32() -> None:
    class Half(Net):
        def features(self, images: Tensor) -> Tensor:
            return super().features(images).bfloat16()

    assert extract(Half(), make_source(), PlainPixels()).dtype == torch.float32


@pytest.mark.parametrize("fails", [False, True])
def test_modes_and_buffers_come_back(fails) -> None:
    net = Net(fails).train()
    net.frozen.eval()
    modes = {name: part.training for name, part in net.named_modules()}
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert set(modes.values()) == {True, False}
    if fails:
        with pytest.raises(RuntimeError, match="broken"):
            extract(net, make_source(), PlainPixels())
    else:
        extract(net, make_source(), PlainPixels())
    assert {name: part.training for name, part in net.named_modules()} == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.is_grad_enabled()


def test_a_part_that_owns_its_mode_evaluates_inside_and_comes_back() -> None:
    class Stubborn(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> "Stubborn":
            self.training = True
            return self

    net = nn.Sequential(Stubborn(3)).eval()
    with evaluating(net):
        assert not net[0].training
    assert net[0].training
    assert not net.training


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="no images"):
        extract(Net(), make_source(0), PlainPixels())
