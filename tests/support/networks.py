"""Networks that are not ours, small: what a user's package, timm or torchvision would bring."""

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ccl import encoders
from ccl.encoders import Encoder, EncoderOptions
from ccl.seeding import seeded


def make_encoder(backbone: str = "resnet18", *, size: int = 224, seed: int = 0, **options: Any) -> Encoder:
    """An encoder by its options; batch norm is not split, unless asked for."""
    asked = EncoderOptions.model_validate({"backbone": backbone, "batch_norm_groups": 1, **options})
    return encoders.make_encoder(asked, size=size, seed=seed)


class SmallViT(nn.Module):
    """A vision transformer of a few hundred weights for images of one size; says itself how it wants them."""

    mean, std, input_size = (0.5, 0.4, 0.3), (0.25, 0.5, 0.125), (3, 16, 16)

    def __init__(self, width: int = 8, depth: int = 3, img_size: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, (img_size // 4) ** 2 + 1, width) * 0.02)
        self.patch_embed = nn.Conv2d(3, width, 4, stride=4)
        layer = [nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True) for _ in range(depth)]
        self.blocks = nn.ModuleList(layer)
        self.norm = nn.LayerNorm(width)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed(images).flatten(2).transpose(1, 2)  # (N, T, width)
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1) + self.pos_embed
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)[:, 0]


def save_vit(path: Path) -> Path:
    """Weights of a SmallViT, always the same, as a file."""
    with seeded(5):
        save_file(SmallViT().state_dict(), path)
    return path


class NormAct(nn.BatchNorm2d):
    """As timm's BatchNormAct2d: normalise, drop, activate."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return self.act(self.drop(super().forward(input)))


class OddNorm(nn.BatchNorm2d):
    """A batch norm with something of its own."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input) + 1


class SmallCNN(nn.Module):
    """Says nothing of itself, not even how many features it gives."""

    norm: type[nn.BatchNorm2d] = NormAct

    def __init__(self, width: int = 4, drop: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.bn = self.norm(width)
        self.dropout = nn.Dropout(drop)
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, stride=2), nn.Conv2d(width, 2 * width, 3, stride=2))

    def forward(self, images: Tensor) -> Tensor:
        return self.body(self.dropout(self.bn(self.stem(images)))).mean(dim=(2, 3))


class OddCNN(SmallCNN):
    """With a norm that nobody can split."""

    norm = OddNorm


class Wrapped(nn.Module):
    """A network inside another, as users write them."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.network = SmallCNN(**options)

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)


class Drawing(SmallCNN):
    """Draws random numbers where no module shows it."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images + 0.01 * torch.rand_like(images) * self.training)


class Classifying(SmallCNN):
    """As torchvision's: ends in a classifier."""

    def __init__(self, weights: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 10))
        if weights:
            nn.init.constant_(self.stem.weight, 0.5)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(super().forward(images))


class Places(SmallCNN):
    """Gives (N, F, H, W), and so is not a backbone."""

    def forward(self, images: Tensor) -> Tensor:
        return self.stem(images)


def make_places() -> nn.Module:
    """No class."""
    return Places()


def fake_timm() -> ModuleType:
    """As much of timm as is asked for."""
    module = ModuleType("timm")

    def create_model(name: str, pretrained: bool = False, num_classes: int = 1000, **options: Any) -> nn.Module:
        assert num_classes == 0
        network = SmallViT(**options) if name.startswith("vit") else SmallCNN(**options)
        network.pretrained_cfg = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5), "input_size": (3, 16, 16)}  # type: ignore[assignment]
        if pretrained:
            for parameter in network.parameters():
                nn.init.constant_(parameter, 0.25)
        return network

    known = ["resnet_small", "vit_small"]
    module.create_model = create_model  # type: ignore[attr-defined]
    module.list_models = lambda: known  # type: ignore[attr-defined]
    module.is_model = lambda name: name in known  # type: ignore[attr-defined]
    return module


def fake_torchvision() -> dict[str, ModuleType]:
    """As much of torchvision as is asked for, by the names of its modules."""
    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    package.models = models  # type: ignore[attr-defined]

    def list_models(module: ModuleType) -> Iterable[str]:
        assert module is models
        return ["resnet_small"]

    models.list_models = list_models  # type: ignore[attr-defined]
    models.get_model = lambda name, weights, **options: Classifying(weights, **options)  # type: ignore[attr-defined]
    return {"torchvision": package, "torchvision.models": models}
