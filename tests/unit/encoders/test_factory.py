"""Backbones of others: found by name, without classifier and dropout, split and frozen like ours."""

import sys

import networks
import pytest
import torch
from networks import make_encoder
from torch import nn

from ccl.encoders import MomentumEncoder, ResNet, SplitBatchNorm
from ccl.encoders.factory import make_foreign, refuse_random, without_random_layers
from ccl.encoders.stages import stages
from ccl.encoders.weights import ImageFormat
from ccl.errors import UserError


@pytest.fixture
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", networks.fake_timm())
    for name, module in networks.fake_torchvision().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("_fakes")
@pytest.mark.parametrize(
    ("name", "num_features"),
    [
        ("timm:resnet_small", 8),
        ("timm:vit_small", 8),
        ("torchvision:resnet_small", 8),
        ("networks:SmallCNN", 8),
        ("networks.SmallViT", 8),
        ("networks:Wrapped", 8),
    ],
)
def test_features_of_networks_of_others(name: str, num_features: int) -> None:
    encoder = make_encoder(name, dim=5, size=16)
    assert encoder.features(torch.randn(3, 3, 16, 16)).shape == (3, num_features)
    assert encoder.num_features == num_features
    assert encoder(torch.randn(3, 3, 16, 16)).norm(dim=1).tolist() == pytest.approx([1.0] * 3)
    again = make_encoder(name, dim=5, size=16)
    assert all(torch.equal(a, b) for a, b in zip(encoder.parameters(), again.parameters(), strict=True))
    assert not any(isinstance(part, nn.Dropout) for part in encoder.modules())


@pytest.mark.usefixtures("_fakes")
def test_pretrained_weights_and_options_reach_the_maker() -> None:
    assert torch.unique(make_foreign("timm:resnet_small", pretrained=True).state_dict()["stem.weight"]).tolist() == [
        0.25
    ]
    assert torch.unique(make_foreign("torchvision:resnet_small", pretrained=True).stem.weight).tolist() == [0.5]
    assert make_encoder("timm:resnet_small", options={"width": 6}, size=16).num_features == 12
    assert make_encoder("networks:SmallCNN", width=3, size=16).num_features == 6
    assert make_foreign("networks:SmallViT", options={"depth": 2}).blocks[1] is not None


@pytest.mark.usefixtures("_fakes")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("timm:resnet_smal", "timm has no model 'resnet_smal'; did you mean 'resnet_small'?"),
        ("torchvision:resnet_smol", "torchvision has no model 'resnet_smol'; did you mean 'resnet_small'?"),
        ("tim:resnet_small", r"can't import tim .*; did you mean timm:resnet_small\?"),
        ("no_such_package.module:Net", "can't import no_such_package.module .*PYTHONPATH"),
        ("networks:SmallCN", "no Module class 'SmallCN'; did you mean 'SmallCNN'?"),
        ("networks:make_places", "no Module class 'make_places'"),
        ("subprocess:Popen", "no Module class 'Popen'"),
        ("os.system", "no Module class 'system'"),
        ("networks:Places", r"gives \(2, 4, 8, 8\) of 2 images; a backbone must give features"),
    ],
)
def test_what_is_not_a_backbone_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as refusal:
        make_encoder(name, size=16)
    assert "\n" not in str(refusal.value)


def test_a_size_that_the_network_can_t_read_is_refused() -> None:
    with pytest.raises(UserError, match=r"SmallViT can't read images of 32×32 pixels .*views.size"):
        make_encoder("networks:SmallViT", size=32)
    assert make_encoder("networks:SmallViT", size=32, options={"img_size": 32}).num_features == 8
    with pytest.raises(UserError, match=r"can't be made: TypeError: .*'depht'"):
        make_encoder("networks:SmallViT", options={"depht": 2}, size=16)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not there
    with pytest.raises(
        UserError, match=r"timm:x needs timm, which can't be imported; in the folder of ccl: pip install '.\[timm\]'"
    ):
        make_encoder("timm:x")


def test_a_network_that_draws_random_numbers_is_refused() -> None:
    backbone = make_foreign("networks:Drawing")
    with pytest.raises(UserError, match="draws random numbers in training"):
        refuse_random(backbone, "networks:Drawing", 16)
    quiet = make_foreign("networks:SmallCNN", options={"drop": 0.5})
    before = {name: value.clone() for name, value in quiet.state_dict().items()}
    quiet.eval()
    refuse_random(quiet, "networks:SmallCNN", 16)
    assert all(torch.equal(value, before[name]) for name, value in quiet.state_dict().items())
    assert not quiet.training
    with pytest.raises(UserError, match="draws random numbers"):  # without this the layer would be there
        refuse_random(networks.SmallCNN(drop=0.5), "networks:SmallCNN", 16)


def test_batch_norms_of_others_are_split_and_keep_what_comes_after_them() -> None:
    torch.manual_seed(0)
    split = make_encoder("networks:SmallCNN", size=16, batch_norm_groups=2).backbone.train()
    plain = make_encoder("networks:SmallCNN", size=16).backbone.train()
    assert [type(part) for part in split.modules()].count(SplitBatchNorm) == 1
    assert split.state_dict().keys() == plain.state_dict().keys()
    images = torch.randn(6, 3, 16, 16)
    whole = split(images)
    for group in range(2):
        assert torch.allclose(whole[group::2], plain(images[group::2]), atol=1e-6)
    split.eval()
    plain.load_state_dict(split.state_dict())
    assert torch.equal(split(images), plain.eval()(images))
    with pytest.raises(
        UserError, match=r"OddNorm is not a batch norm that can be split; set encoder.batch_norm_groups=1"
    ):
        make_encoder("networks:OddCNN", size=16, batch_norm_groups=2)


def first_names(network: nn.Module) -> list[list[str]]:
    return [list(stage.modules) for stage in stages(network)]


def test_stages_of_any_network() -> None:
    assert first_names(ResNet(18, width=4)) == [["conv1", "bn1"], ["layer1"], ["layer2"], ["layer3"], ["layer4"]]
    vit = networks.SmallViT()
    assert first_names(vit) == [["patch_embed"], ["blocks.0"], ["blocks.1"], ["blocks.2", "norm"]]
    assert stages(vit)[0].parameters[:2] == ("cls_token", "pos_embed")
    assert first_names(networks.Wrapped()) == [["network.stem", "network.bn"], ["network.body.0"], ["network.body.1"]]
    for network in (vit, ResNet(18, width=4), networks.Wrapped(), make_encoder("convnet").backbone):
        names = [name for stage in stages(network) for name in stage.parameters]
        assert sorted(names) == sorted(name for name, _ in network.named_parameters())  # each once
    assert len(stages(make_encoder("convnet").backbone)) == 4


def test_frozen_stages_neither_learn_nor_gather_statistics() -> None:
    encoder = make_encoder("resnet18", width=4, freeze_stages=2).train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    encoder(torch.randn(4, 3, 16, 16)).sum().backward()
    moved = {name for name, value in encoder.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert all(name.startswith(("backbone.layer2", "backbone.layer3", "backbone.layer4")) for name in moved)
    learning = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[1] for name in learning if name.startswith("backbone")} == {"layer2", "layer3", "layer4"}
    copy = MomentumEncoder(encoder, 0.5, batch_statistics=True)
    assert not copy.copy.backbone.layer1[0].bn1.training  # type: ignore[union-attr, index]
    assert copy.copy.backbone.layer2[0].bn1.training  # type: ignore[union-attr, index]
    with pytest.raises(UserError, match="freeze_stages 9: this backbone has 5 stages; nearest valid value: 5"):
        make_encoder("resnet18", width=4, freeze_stages=9)


@pytest.mark.parametrize("name", ["resnet18", "networks:SmallCNN"])
def test_frozen_batch_norms_stay_as_they_are(name: str) -> None:
    encoder = make_encoder(name, width=4, size=16, freeze_batch_norm=True, batch_norm_groups=2).train()
    images = torch.randn(4, 3, 16, 16)
    buffers = {key: value.clone() for key, value in encoder.named_buffers()}
    trained = encoder(images)
    assert all(torch.equal(value, buffers[key]) for key, value in encoder.named_buffers())
    assert torch.equal(trained, encoder.eval()(images))
    frozen = [parameter for parameter in encoder.backbone.parameters() if not parameter.requires_grad]
    assert frozen
    assert all(parameter.ndim == 1 for parameter in frozen)


def test_how_a_network_wants_its_images() -> None:
    assert ImageFormat.of_module(networks.SmallViT()) == ImageFormat((0.5, 0.4, 0.3), (0.25, 0.5, 0.125), 16)
    assert ImageFormat.of_module(networks.SmallCNN()) == ImageFormat()
    hub = {"pretrained_cfg": {"mean": [0.5] * 3, "std": [0.2] * 3, "input_size": [3, 64, 64]}}
    assert ImageFormat.from_config(hub) == ImageFormat((0.5,) * 3, (0.2,) * 3, 64)
    assert ImageFormat.from_config({"image_mean": [1, 2, 3], "size": {"shortest_edge": 48}}) == ImageFormat(
        (1.0, 2.0, 3.0), None, 48
    )
    assert ImageFormat.from_config({"mean": "red", "std": [1, 2], "size": -1}) == ImageFormat()
    assert ImageFormat(size=8).over(ImageFormat(size=9, mean=(0.0, 0.0, 0.0))) == ImageFormat((0.0, 0.0, 0.0), None, 8)


def test_a_rate_of_dropout_can_still_be_read() -> None:
    """As timm's ViTs do, which give it to a fused attention."""

    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.drop(rows), self.drop.p, self.training)

    rows = torch.ones(64, 8)
    assert torch.equal(without_random_layers(Reading()).train()(rows), rows)


@pytest.mark.usefixtures("_fakes")
def test_timm_is_not_handed_a_file_to_unpickle() -> None:
    with pytest.raises(UserError, match=r"encoder\.options\.checkpoint_path could run code"):
        make_foreign("timm:resnet_small", options={"checkpoint_path": "file.pth"})
