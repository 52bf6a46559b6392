"""A small plain network for laptops: four convolutions, no shortcuts."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FEW_PLACES = 4  # of an output: up to these, one product is 2 to 4 times as fast on a CPU (docs/performance.md)


class StridedConv(nn.Conv2d):
    """A 3×3 convolution of stride 2; where few places are left, a CPU computes it as one product of its windows."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__(num_in, num_out, 3, stride=2, padding=1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        height, width = ((side + 1) // 2 for side in images.shape[-2:])  # of the output
        if images.device.type != "cpu" or height * width > _FEW_PLACES:
            return super().forward(images)
        padded = F.pad(images.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))  # (N, H+2, W+2, C)
        corners = [(2 * row, 2 * column) for row in range(height) for column in range(width)]
        windows = torch.stack([padded[:, top : top + 3, left : left + 3] for top, left in corners], dim=1)
        rows = windows.flatten(2)  # (N, places, 9·C); sizes of a batch stay symbols, so that it can be exported
        outputs = rows @ self.weight.permute(0, 2, 3, 1).flatten(1).T  # (N, places, C out)
        return outputs.view(-1, height, width, self.out_channels).permute(0, 3, 1, 2)


class ConvNet(nn.Module):
    """Four 3×3 convolutions of stride 2 with 1, 2, 4 and 8 times `width` channels, then the mean over places."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for factor in (1, 2, 4, 8):
            layers += [StridedConv(channels, width * factor), nn.BatchNorm2d(width * factor), nn.ReLU(inplace=True)]
            channels = width * factor
        self.layers = nn.Sequential(*layers)
        self.num_features = channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.layers(images).mean(dim=(2, 3)))  # (N, F)
