"""The side of lightly in `benchmarks.against_lightly`: runs in lightly's own environment and imports nothing of ccl."""

import copy
import json
import sys
import time
from typing import Any

import numpy as np
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import MoCoProjectionHead
from lightly.models.utils import deactivate_requires_grad, update_momentum
from lightly.transforms.moco_transform import MoCoV2Transform
from PIL import Image
from torch import nn


def convnet(width: int) -> tuple[nn.Module, int]:
    """Four 3×3 convolutions of stride 2: the same as ccl's ConvNet."""
    layers: list[nn.Module] = []
    channels = 3
    for factor in (1, 2, 4, 8):
        layers += [
            nn.Conv2d(channels, width * factor, 3, 2, 1, bias=False),
            nn.BatchNorm2d(width * factor),
            nn.ReLU(True),
        ]
        channels = width * factor
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), channels


def resnet18(width: int) -> tuple[nn.Module, int]:
    """torchvision's, with the stem for small images."""
    import torchvision

    network = torchvision.models.resnet18(width_per_group=width)
    network.conv1, network.maxpool, network.fc = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity(), nn.Identity()
    return network, 512


class Pictures(torch.utils.data.Dataset[Any]):
    """Two views of random pictures, which are in memory as PIL images: what lightly's transforms take."""

    def __init__(self, count: int, transform: Any) -> None:
        self.transform = transform
        rng = np.random.default_rng(0)
        self.pictures = [Image.fromarray(rng.integers(256, size=(32, 32, 3), dtype=np.uint8)) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, number: int) -> Any:
        return self.transform(self.pictures[number])


def main() -> None:
    """Epochs of MoCo v2 as lightly's documentation has it; the best one's images a second."""
    name, width, batch_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    count = 1000 if name == "convnet" else 130
    backbone, features = {"convnet": convnet, "resnet18": resnet18}[name](width)
    head = MoCoProjectionHead(features, features, 128)
    key_backbone, key_head = copy.deepcopy(backbone), copy.deepcopy(head)
    deactivate_requires_grad(key_backbone)
    deactivate_requires_grad(key_head)
    criterion = NTXentLoss(temperature=0.1, memory_bank_size=(4096, 128))
    # No blur on images of 32 pixels, as ccl's recipe for them.
    transform = MoCoV2Transform(input_size=32, min_scale=0.08, gaussian_blur=0.0)
    data = Pictures(count, transform)
    loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=0)
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.06, momentum=0.9, weight_decay=5e-4)
    best = 0.0
    for _ in range(3):
        started, seen = time.perf_counter(), 0
        for batch in loader:
            (query_view, key_view), seen = batch, seen + batch_size
            update_momentum(backbone, key_backbone, m=0.99)
            update_momentum(head, key_head, m=0.99)
            query = head(backbone(query_view))
            with torch.no_grad():
                key = key_head(key_backbone(key_view))
            loss = criterion(query, key)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        best = max(best, seen / (time.perf_counter() - started))
    print(json.dumps({"images_per_second": best}))


main()
