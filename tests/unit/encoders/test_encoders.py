"""Backbones, split batch norm and momentum copies."""

import pytest
import torch
from networks import make_encoder
from torch import nn

from ccl.catalogue import BACKBONES
from ccl.encoders import MomentumEncoder, ResNet, SplitBatchNorm, make_head, split_batch_norm


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("head", ["mlp", "linear", "mlp_bn", "simsiam"])
def test_embeddings_have_unit_norm_and_features_their_size(backbone: str, head: str) -> None:
    encoder = make_encoder(backbone, width=8, dim=16, head=head)
    images = torch.randn(2, 3, 32, 32)
    assert encoder(images).norm(dim=1).tolist() == pytest.approx([1.0, 1.0])
    assert encoder.features(images).shape == (2, encoder.num_features)


def test_stems_differ_in_resolution() -> None:
    seen: list[tuple[int, ...]] = []
    for stem in ("cifar", "imagenet"):
        net = ResNet(18, stem, width=4)
        net.get_submodule("layer1").register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape[2:])))
        net(torch.randn(2, 3, 32, 32))
    assert seen == [(32, 32), (8, 8)]


def test_initialisation_is_a_pure_function_of_the_seed() -> None:
    torch.manual_seed(1)
    first = make_encoder("convnet", seed=3)
    torch.manual_seed(2)
    again, other = make_encoder("convnet", seed=3), make_encoder("convnet", seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(iter(first.parameters())), next(iter(other.parameters())))


# --- Heads


def shapes(head: nn.Module) -> list[str]:
    """Each layer by its kind, with what it holds."""
    return [
        f"{type(part).__name__} {' '.join(f'{name}{tuple(value.shape)}' for name, value in part.named_parameters())}"
        for part in head.modules()
        if not list(part.children())
    ]


def test_heads_have_the_layers_of_their_papers() -> None:
    relu = "ReLU "
    assert shapes(make_head("mlp", 5, 3)) == ["Linear weight(5, 5) bias(5,)", relu, "Linear weight(3, 5) bias(3,)"]
    assert shapes(make_head("linear", 5, 3, 7, 4)) == ["Linear weight(3, 5) bias(3,)"]
    hidden = ["Linear weight(7, 5)", "BatchNorm1d weight(7,) bias(7,)", relu]
    assert shapes(make_head("mlp_bn", 5, 3, 7)) == [*hidden, "Linear weight(3, 7) bias(3,)"]
    again = ["Linear weight(7, 7)", *hidden[1:]]
    assert shapes(make_head("simsiam", 5, 3, 7, 3)) == [*hidden, *again, "Linear weight(3, 7)", "BatchNorm1d "]
    with pytest.raises(ValueError, match="not 'mpl'"):
        make_head("mpl", 5, 3)


def test_the_plain_heads_are_the_same_network_as_ever() -> None:
    torch.manual_seed(4)
    expected = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)).state_dict()
    torch.manual_seed(4)
    found = make_head("mlp", 6, 3).state_dict()
    assert found.keys() == expected.keys()  # as checkpoints have them
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("kind", ["mlp_bn", "simsiam"])
def test_batch_norm_of_a_head_is_split_too(kind: str) -> None:
    options = {"width": 4, "dim": 6, "head": kind, "head_width": 5}
    split = make_encoder("convnet", batch_norm_groups=3, **options).head.train()  # type: ignore[arg-type]
    rows, found = torch.randn(12, split[0].in_features), torch.empty(12, 6)
    for group in range(3):
        found[group::3] = make_encoder("convnet", **options).head.train()(rows[group::3])  # type: ignore[arg-type]
    torch.testing.assert_close(split(rows), found)
    if kind == "simsiam":
        torch.testing.assert_close(found[::3].mean(dim=0), torch.zeros(6), atol=1e-5, rtol=0)


# --- Split batch norm


def by_hand(images: torch.Tensor, groups: int) -> torch.Tensor:
    """Every group on its own through torch's batch norm."""
    out = torch.empty_like(images)
    for group in range(groups):
        out[group::groups] = nn.BatchNorm2d(images.shape[1])(images[group::groups])
    return out


@pytest.mark.parametrize(("num", "groups"), [(12, 1), (12, 4), (13, 4), (11, 3)])
def test_each_group_is_normalised_by_itself(num: int, groups: int) -> None:
    images = torch.randn(num, 5, 3, 3) * torch.arange(1.0, num + 1)[:, None, None, None]
    assert torch.allclose(SplitBatchNorm(5, groups)(images), by_hand(images, groups), atol=1e-5)


@pytest.mark.parametrize("num", [12, 13])
def test_running_statistics_follow_the_mean_over_groups(num: int) -> None:
    images = torch.randn(num, 5, 3, 3) + 2.0
    split = SplitBatchNorm(5, 4)
    split(images)
    single = []
    for group in range(4):
        norm = nn.BatchNorm2d(5)
        norm(images[group::4])
        single.append((norm.running_mean, norm.running_var))
    assert torch.allclose(split.running_mean, torch.stack([mean for mean, _ in single]).mean(0), atol=1e-6)
    assert torch.allclose(split.running_var, torch.stack([var for _, var in single]).mean(0), atol=1e-6)


def test_evaluation_is_plain_batch_norm() -> None:
    split, plain = SplitBatchNorm(5, 4).eval(), nn.BatchNorm2d(5).eval()
    split.running_mean.uniform_()
    plain.load_state_dict(split.state_dict())
    images = torch.randn(7, 5, 3, 3)
    assert torch.equal(split(images), plain(images))


def test_gradients_of_both_paths_agree_with_torch() -> None:
    for num in (12, 13):
        images = torch.randn(num, 5, 3, 3, requires_grad=True)
        weight = torch.randn(num, 5, 3, 3)
        (SplitBatchNorm(5, 4)(images) * weight).sum().backward()
        mine, images.grad = images.grad, None
        (by_hand(images, 4) * weight).sum().backward()
        assert torch.allclose(mine, images.grad, atol=1e-5)


# --- Momentum copies


def test_following_moves_parameters_and_buffers_by_the_formula() -> None:
    source = make_encoder("convnet", width=4, dim=8)
    copy = MomentumEncoder(source, 0.9)
    before = {name: value.clone() for name, value in copy.copy.state_dict().items()}
    with torch.no_grad():
        for value in source.state_dict().values():
            value.add_(3)
    copy.follow(source)
    for name, value in copy.copy.state_dict().items():
        theirs = source.state_dict()[name]
        expected = 0.9 * before[name] + 0.1 * theirs if value.is_floating_point() else theirs
        assert torch.allclose(value, expected), name


def test_reset_copies_everything_and_shares_nothing() -> None:
    source = make_encoder("convnet", width=4, dim=8)
    copy = MomentumEncoder(source, 0.9)
    source.train()(torch.randn(8, 3, 16, 16))  # moves the running statistics
    assert not torch.equal(copy.copy.state_dict()["backbone.layers.1.running_mean"], torch.ones(4))
    copy.reset(source)
    for name, value in copy.copy.state_dict().items():
        assert torch.equal(value, source.state_dict()[name])
        assert value.data_ptr() != source.state_dict()[name].data_ptr()


def test_a_copy_owns_its_mode_and_never_trains() -> None:
    source = make_encoder("convnet", width=4, dim=8).train()
    holder = nn.ModuleDict({"teacher": MomentumEncoder(source, 0.9), "key_encoder": MomentumEncoder(source, 0.9, True)})
    holder.train()
    assert not any(module.training for module in holder["teacher"].modules())
    holder.eval()
    assert all(module.training for module in holder["key_encoder"].copy.modules())
    assert not any(parameter.requires_grad for parameter in holder["teacher"].parameters())
    assert not holder["teacher"](torch.randn(2, 3, 16, 16)).requires_grad


def test_momentum_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="momentum"):
        MomentumEncoder(nn.Linear(2, 2), 1.5)


# --- What one forward gives, and batch norm of any module


def test_one_forward_gives_features_projections_and_unit_embeddings() -> None:
    encoder, images = make_encoder("convnet", width=4, dim=8).eval(), torch.randn(5, 3, 16, 16)
    seen = encoder.embed(images)
    assert torch.equal(seen.features, encoder.features(images))
    assert torch.equal(seen.projection, encoder.head(seen.features))
    assert torch.equal(seen.unit, encoder(images))
    assert torch.allclose(seen.unit.norm(dim=1), torch.ones(5))
    assert len(seen) == 5
    assert torch.equal(seen.rows(slice(1, 3)).features, seen.features[1:3])
    copied = MomentumEncoder(encoder, 0.9).embed(images)
    assert torch.equal(copied.projection, seen.projection)


def test_any_module_s_batch_norm_is_split_and_keeps_its_weights() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, affine=False), nn.Sequential(nn.BatchNorm1d(5, eps=0.1)))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert split_batch_norm(module, 1) is module
    assert type(module[1]) is nn.BatchNorm1d
    split_batch_norm(module, 2)
    assert isinstance(module[1], SplitBatchNorm)
    assert module[2][0].eps == 0.1
    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    rows = torch.randn(8, 5)
    by_group = torch.empty_like(rows)
    for group in range(2):
        part = rows[group::2]
        by_group[group::2] = (part - part.mean(0)) / (part.var(0, unbiased=False) + 1e-5).sqrt()
    assert torch.allclose(module[1](rows), by_group, atol=1e-5)
