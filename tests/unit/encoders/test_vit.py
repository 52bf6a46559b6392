"""The vision transformer against NumPy: patches, positions, blocks; what is not shown is not read; what others need."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import make_encoder
from torch import Tensor

from ccl.encoders import ViT
from ccl.encoders.stages import stages
from ccl.encoders.vit import Block, cut, positions, vit_small, vit_tiny
from ccl.errors import UserError


def images(count: int = 3, side: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def test_published_sizes() -> None:
    """ViT-Ti has 12 blocks of 12·192² + 13·192 parameters; no class token, no learned positions."""
    for network, width, heads in ((vit_tiny(), 192, 3), (vit_small(), 384, 6)):
        block = 12 * width**2 + 13 * width
        embedding, norm = 48 * width + width, 2 * width
        assert sum(p.numel() for p in network.parameters()) == 12 * block + embedding + norm
        assert [part.num_heads for part in network.modules() if isinstance(part, Block)] == [heads] * 12


@pytest.mark.parametrize("channels_last", [False, True])
def test_patches_are_squares_of_pixels_row_by_row(channels_last: bool) -> None:
    seen = images(2, 11)  # three pixels are left over on two sides
    whole = seen.contiguous(memory_format=torch.channels_last) if channels_last else seen
    found = cut(whole, 4)
    assert found.shape == (2, 4, 48)
    for row in range(2):
        for column in range(2):
            square = seen[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            assert torch.equal(found[:, 2 * row + column], square.permute(0, 2, 3, 1).flatten(1))


@pytest.mark.parametrize("width", [8, 10, 3])
def test_positions_are_sines_and_cosines_of_row_and_column(width: int) -> None:
    found, num = positions(2, 3, width, torch.device("cpu")), width // 4
    for row in range(2):
        for column in range(3):
            angles = [place / 10_000 ** (k / num) for place in (row, column) for k in range(num)]
            expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
            expected += [0.0] * (width - len(expected))
            assert found[3 * row + column].tolist() == pytest.approx(expected, abs=1e-6)


def normed(rows: np.ndarray, layer: torch.nn.LayerNorm) -> np.ndarray:
    scaled = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-6)
    return scaled * layer.weight.detach().numpy() + layer.bias.detach().numpy()


def linear(rows: np.ndarray, layer: torch.nn.Module) -> np.ndarray:
    weight, bias = (dict(layer.named_parameters())[name].detach().numpy() for name in ("weight", "bias"))
    return rows @ weight.T + bias


def test_a_block_is_pre_norm_attention_and_a_pre_norm_layer() -> None:
    torch.manual_seed(0)
    block, tokens = Block(6, 2).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    rows = tokens.numpy()
    query, key, value = np.split(linear(normed(rows, block.norm1), block.qkv), 3, axis=-1)
    mixed = np.zeros_like(rows)
    for image in range(2):
        for head in (slice(0, 3), slice(3, 6)):
            scores = query[image][:, head] @ key[image][:, head].T / math.sqrt(3)
            shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            mixed[image][:, head] = shares @ value[image][:, head]
    rows = rows + linear(mixed, block.proj)
    hidden = linear(normed(rows, block.norm2), block.mlp[0])
    hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    expected = rows + linear(hidden, block.mlp[2])
    np.testing.assert_allclose(block(tokens).detach().numpy(), expected, atol=1e-9)


def test_features_are_the_mean_over_tokens_and_all_visible_is_all() -> None:
    network, seen = ViT(width=8, depth=2).eval(), images()
    whole = network.tokens(seen)
    assert whole.shape == (3, 16, 8)
    assert torch.equal(network(seen), whole.mean(dim=1))
    everything = torch.arange(16).expand(3, -1)
    torch.testing.assert_close(network.tokens(seen, everything), whole)
    shuffled = torch.stack([torch.randperm(16) for _ in range(3)])
    ordered = network.tokens(seen, shuffled)
    torch.testing.assert_close(ordered, whole.gather(1, shuffled[:, :, None].expand(-1, -1, 8)))  # a set of places


def test_only_visible_patches_are_read() -> None:
    network, seen = ViT(width=8, depth=2).eval(), images(1)
    visible = torch.tensor([[2, 7, 8]])
    before = network.tokens(seen, visible)
    other = images(1, seed=1)
    kept = cut(torch.arange(256.0).view(1, 1, 16, 16).expand(1, 3, 16, 16), 4)[0, visible[0], ::3].flatten().long()
    other.flatten(2)[:, :, kept] = seen.flatten(2)[:, :, kept]
    assert torch.equal(network.tokens(other, visible), before)
    assert not torch.allclose(network(other), network(seen))
    other.flatten(2)[:, :, kept[0]] += 1.0
    assert not torch.allclose(network.tokens(other, visible), before)


@pytest.mark.parametrize("width", [4, 10, 100, 192, 200])
def test_any_width_and_size_will_do(width: int) -> None:
    network = ViT(width=width, depth=1)
    assert network(images(2, 18)).shape == (2, width)
    state = copy.deepcopy(network.state_dict())
    assert network(images(2, 33)).shape == (2, width)
    assert ViT(width=width, depth=1).load_state_dict(state)


def test_stages_are_the_embedding_and_each_block_and_can_be_frozen() -> None:
    network = vit_tiny(width=8)
    found = stages(network)
    assert [stage.modules for stage in found[:3]] == [("embed",), ("blocks.0",), ("blocks.1",)]
    assert len(found) == 13
    assert found[-1].modules == ("blocks.11", "norm")
    assert sum(len(stage.parameters) for stage in found) == len(list(network.parameters()))
    encoder = make_encoder("vit_tiny", width=8, freeze_stages=2, freeze_batch_norm=True, batch_norm_groups=2)
    encoder.tokens(images(), torch.tensor([[0, 3]]).expand(3, -1)).sum().backward()
    moved = {name for name, p in encoder.backbone.named_parameters() if p.grad is not None}
    assert not any(name.startswith(("embed", "blocks.0.")) for name in moved)
    assert any(name.startswith("blocks.1.") for name in moved)


def test_images_smaller_than_two_by_two_patches_are_refused() -> None:
    with pytest.raises(UserError, match=r"views.size 16: vit_tiny has patches of 16 px .*; set encoder.stem=cifar"):
        make_encoder("vit_tiny", stem="imagenet", size=16)
    with pytest.raises(UserError, match=r"views.size 4: .*; nearest valid value: 8"):
        make_encoder("vit_tiny", size=4)
    make_encoder("vit_tiny", width=8, size=8)(images(2, 8))


def test_it_can_be_exported(tmp_path: Path) -> None:
    network, seen = vit_tiny(width=8).eval(), images(5)
    program = torch.export.export(network, (seen,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(images(2)), network(images(2)))
