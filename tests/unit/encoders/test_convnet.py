"""The ConvNet's convolutions, computed by windows where few places are left."""

import pytest
import torch
import torch.nn.functional as F

from ccl.encoders.convnet import ConvNet, StridedConv


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (2, 3), (3, 3), (4, 4), (4, 3), (5, 4), (8, 8), (2, 7)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_outputs_and_gradients_are_those_of_a_convolution(shape: tuple[int, int], channels_last: bool) -> None:
    torch.manual_seed(0)
    layer = StridedConv(5, 7).double()
    images = torch.randn(3, 5, *shape, dtype=torch.float64)
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    images.requires_grad_()
    found = layer(images)
    expected = F.conv2d(images, layer.weight, stride=2, padding=1)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-12)
    upstream = torch.randn_like(expected)
    inputs = [images, layer.weight]
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-12)


def test_an_image_has_the_same_features_alone_and_in_a_batch() -> None:
    network, images = ConvNet(width=4).eval(), torch.randn(6, 3, 16, 16)
    with torch.no_grad():
        together, alone = network(images), torch.cat([network(image[None]) for image in images])
    assert torch.allclose(together, alone, atol=1e-6)


def test_weights_keep_the_names_and_shapes_that_older_files_have() -> None:
    shapes = {name: tuple(value.shape) for name, value in ConvNet(width=4).named_parameters() if value.ndim == 4}
    assert shapes == {
        "layers.0.weight": (4, 3, 3, 3),
        "layers.3.weight": (8, 4, 3, 3),
        "layers.6.weight": (16, 8, 3, 3),
        "layers.9.weight": (32, 16, 3, 3),
    }


def test_no_images_give_no_features() -> None:
    """A rank may have no remembered image in a batch."""
    features = ConvNet(width=4)(torch.zeros(0, 3, 16, 16))
    assert features.shape == (0, 32)


def test_an_exported_network_takes_batches_of_any_size() -> None:
    network = ConvNet(width=2).eval()
    batch = torch.export.Dim("batch", min=1)
    exported = torch.export.export(network, (torch.randn(3, 3, 16, 16),), dynamic_shapes=({0: batch},)).module()
    for count in (1, 2, 5):
        images = torch.randn(count, 3, 16, 16)
        assert torch.equal(exported(images), network(images))
