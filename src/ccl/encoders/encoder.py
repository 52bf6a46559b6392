"""Backbone and head as one module, and how a frozen one is read: a row of features or embeddings per image."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ccl import ranks
from ccl.data.image_sources import ImageSource
from ccl.encoders.stages import stages
from ccl.encoders.vit import ViT
from ccl.errors import UserError
from ccl.views import Viewer

Output = Literal["features", "embeddings"]


def make_head(kind: str, num_features: int, dim: int, width: int | None = None, num_layers: int = 2) -> nn.Module:
    """The head from features (N, F) to projections (N, dim); hidden layers have `width`, None: that of the features.

    "linear" is one layer; "mlp" has no batch norm; "mlp_bn" has it in every hidden layer; "simsiam" on the output too,
    there without scale and shift.
    """
    if kind == "linear":
        return nn.Linear(num_features, dim)
    if kind not in ("mlp", "mlp_bn", "simsiam"):
        raise ValueError(f"head must be 'mlp', 'linear', 'mlp_bn' or 'simsiam', not {kind!r}")
    has_norm = kind != "mlp"
    widths = [num_features, *[width or num_features] * (num_layers - 1), dim]
    layers: list[nn.Module] = []
    for number, (wide_in, wide_out) in enumerate(pairwise(widths), start=1):
        is_last, is_normed = number == num_layers, has_norm if number < num_layers else kind == "simsiam"
        layers.append(nn.Linear(wide_in, wide_out, bias=not is_normed))  # batch norm would subtract a bias again
        layers += [nn.BatchNorm1d(wide_out, affine=not is_last)] if is_normed else []
        layers += [] if is_last else [nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Embedded:
    """Features, projections and unit embeddings of N images, from one forward."""

    features: Tensor  # (N, F), what the backbone gives
    projection: Tensor  # (N, D), what the head gives
    unit: Tensor  # (N, D), the projection at unit norm

    def __len__(self) -> int:
        return len(self.unit)

    def rows(self, chosen: slice | Tensor) -> "Embedded":
        """The rows of some of the images."""
        return Embedded(self.features[chosen], self.projection[chosen], self.unit[chosen])

    def split(self, sizes: list[int]) -> "list[Embedded]":
        """Split into consecutive groups of so many images each."""
        ends = list(accumulate(sizes))
        return [self.rows(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


class Encoder(nn.Module):
    """Images to unit-norm embeddings through backbone and head; `features` stops before the head."""

    def __init__(
        self,
        backbone: nn.Module,
        dim: int = 128,
        head: str = "mlp",
        head_width: int | None = None,
        head_layers: int = 2,
        num_features: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.num_features: int = num_features or cast(int, backbone.num_features)
        self.dim = dim
        self.head = make_head(head, self.num_features, dim, head_width, head_layers)
        self.dtype = torch.float32  # of the arithmetic; parameters, features and embeddings are float32 always
        self.channels_last = False
        self.frozen_modules: tuple[nn.Module, ...] = ()  # always in evaluation mode, and never trained

    def freeze(self, num_stages: int = 0, batch_norm: bool = False) -> None:
        """Keep weights and statistics of the backbone's first stages, or of all its batch norms, as they are."""
        found = stages(self.backbone)
        if num_stages > len(found):
            raise UserError(
                f"encoder.freeze_stages {num_stages}: this backbone has {len(found)} stages; "
                f"nearest valid value: {len(found)}"
            )
        frozen: list[nn.Module] = []
        frozen += [part for part in self.backbone.modules() if batch_norm and isinstance(part, _BatchNorm)]
        for stage in found[:num_stages]:
            for name in stage.parameters:
                self.backbone.get_parameter(name).requires_grad_(False)
            frozen += [part for name in stage.modules for part in self.backbone.get_submodule(name).modules()]
        for part in frozen:
            part.requires_grad_(False)
        self.frozen_modules = tuple(frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for part in self.frozen_modules:
            part.training = False
        return self

    def compute_in(self, dtype: torch.dtype, channels_last: bool = False) -> None:
        """Set the arithmetic's number format, also for copies made from here."""
        self.dtype, self.channels_last = dtype, channels_last
        if channels_last:
            cast(Any, self).to(memory_format=torch.channels_last)  # torch's annotations don't know this form

    def features(self, images: Tensor) -> Tensor:
        """Features (N, num_features), as probes, searches and classifiers read them."""
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with self._casting(images):
            return cast(Tensor, self.backbone(images)).float()

    def tokens(self, images: Tensor, visible: Tensor) -> Tensor:
        """Tokens of the patches numbered `visible`, (N, L shown), alone, if the backbone has some: (N, L shown, F)."""
        with self._casting(images):
            return cast(ViT, self.backbone).tokens(images, visible).float()

    def embed(self, images: Tensor) -> Embedded:
        """Features, raw projections and unit embeddings from one forward."""
        features = self.features(images)
        with self._casting(images):
            projection = cast(Tensor, self.head(features)).float()
        return Embedded(features, projection, F.normalize(projection, dim=1))

    def embed_none(self, device: torch.device) -> Embedded:
        """The `Embedded` of zero images; batch norm would refuse an empty batch."""
        features, rows = torch.zeros(0, self.num_features, device=device), torch.zeros(0, self.dim, device=device)
        return Embedded(features, rows, rows)

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(images).unit  # (N, D)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile backbone and head with torch.compile."""
        self.backbone.compile(*args, **options)
        self.head.compile(*args, **options)

    def _casting(self, images: Tensor) -> AbstractContextManager[object]:
        return nullcontext() if self.dtype is torch.float32 else torch.autocast(images.device.type, self.dtype)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Context manager: evaluation mode without gradients; every submodule's mode is restored at the end."""
    modes = [(part, part.training) for part in module.modules()]
    # Flags, not .eval() and .train(): a part that owns its mode (a teacher) must come back as it was.
    try:
        for part, _ in modes:
            part.training = False
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def extract(
    module: Encoder, source: ImageSource, viewer: Viewer, batch_size: int = 512, output: Output = "features"
) -> Tensor:
    """Rows (N, F) or (N, D) in the source's order, float32 on the CPU, for all ranks; the source may not be empty."""
    return _read(module, module.features if output == "features" else module, source, viewer, batch_size)


def extract_both(module: Encoder, source: ImageSource, viewer: Viewer, batch_size: int = 512) -> tuple[Tensor, Tensor]:
    """Features (N, F) and embeddings (N, D) as `extract` gives them, from one forward of each image."""

    def side_by_side(images: Tensor) -> Tensor:
        embedded = module.embed(images)
        return torch.cat([embedded.features, embedded.unit], dim=1)  # (n, F+D)

    rows = _read(module, side_by_side, source, viewer, batch_size)
    return rows[:, : module.num_features].contiguous(), rows[:, module.num_features :].contiguous()


def _read(
    module: Encoder, read: Callable[[Tensor], Tensor], source: ImageSource, viewer: Viewer, batch_size: int
) -> Tensor:
    if not len(source):
        raise ValueError("there are no images to extract features from")
    mine = ranks.own(torch.arange(len(source)))
    is_shared = 1 < ranks.size() <= len(source)  # fewer images than ranks: everyone reads them all
    with evaluating(module):
        batches = viewer.plain_batches(source.subset(mine) if is_shared else source, batch_size)
        rows = torch.cat([read(images).float() for images in batches])
    return (ranks.gather(rows, torch.ones(len(source), dtype=torch.bool)) if is_shared else rows).cpu()  # (N, …)
