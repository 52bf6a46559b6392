"""A small plain network for laptops: four convolutions, no shortcuts."""

from typing import cast

from torch import Tensor, nn


class ConvNet(nn.Module):
    """Four 3×3 convolutions of stride 2 with 1, 2, 4 and 8 times `width` channels, then the mean over places."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for factor in (1, 2, 4, 8):
            layers += [
                nn.Conv2d(channels, width * factor, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(width * factor),
                nn.ReLU(inplace=True),
            ]
            channels = width * factor
        self.layers = nn.Sequential(*layers)
        self.num_features = channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.layers(images).mean(dim=(2, 3)))  # (N, F)
