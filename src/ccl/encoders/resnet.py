"""ResNet-18, -34 and -50 with torchvision's parameter names, a stem for small or large images, and a width."""

from typing import ClassVar, cast

from torch import Tensor, nn


def _conv3x3(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)


def _conv1x1(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels_in, channels, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv3x3(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(channels_in, channels * self.expansion, stride)

    def forward(self, images: Tensor) -> Tensor:
        shortcut = images if self.downsample is None else self.downsample(images)
        out = self.relu(self.bn1(self.conv1(images)))
        out = self.bn2(self.conv2(out))
        return cast(Tensor, self.relu(out + shortcut))


class Bottleneck(nn.Module):
    """1×1, 3×3 (with the stride, as torchvision has it) and 1×1 convolutions and a shortcut."""

    expansion: ClassVar[int] = 4

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv1x1(channels_in, channels)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv3x3(channels, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = _conv1x1(channels, channels * self.expansion)
        self.bn3 = nn.BatchNorm2d(channels * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(channels_in, channels * self.expansion, stride)

    def forward(self, images: Tensor) -> Tensor:
        shortcut = images if self.downsample is None else self.downsample(images)
        out = self.relu(self.bn1(self.conv1(images)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return cast(Tensor, self.relu(out + shortcut))


def _shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and channels_in == channels_out:
        return None
    return nn.Sequential(_conv1x1(channels_in, channels_out, stride), nn.BatchNorm2d(channels_out))


_LAYOUTS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """The backbone without its classifier: images (N, 3, S, S) to features (N, num_features)."""

    def __init__(self, depth: int = 18, stem: str = "cifar", width: int = 64) -> None:
        super().__init__()
        block, num_blocks = _LAYOUTS[depth]
        if stem == "cifar":
            self.conv1 = nn.Conv2d(3, width, 3, 1, padding=1, bias=False)
            self.maxpool: nn.Module = nn.Identity()
        elif stem == "imagenet":
            self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        else:
            raise ValueError(f"stem must be 'cifar' or 'imagenet', not {stem!r}")
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        channels = width
        for number, repeats in enumerate(num_blocks):
            blocks: list[nn.Module] = []
            for repeat in range(repeats):
                stride = 2 if number > 0 and repeat == 0 else 1
                blocks.append(block(channels, width * 2**number, stride))
                channels = width * 2**number * block.expansion
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.num_features = channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        out = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for number in range(1, 5):
            out = self.get_submodule(f"layer{number}")(out)
        return cast(Tensor, self.avgpool(out).flatten(1))  # (N, F)
