"""Backbone and head as one module, and the builder that the settings call."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ccl.catalogue import BACKBONES, foreign_kind
from ccl.encoders.batch_norm import split_batch_norm
from ccl.encoders.foreign_backbones import found_features, make_foreign
from ccl.encoders.stages import stages
from ccl.errors import UserError
from ccl.seeding import seeded


class Backbone(Protocol):
    """What a backbone must have beside being a module."""

    num_features: int


class PatchBackbone(Backbone, Protocol):
    """What a backbone must have whose row gives patches."""

    patch_size: int  # pixels

    def tokens(self, images: Tensor, visible: Tensor | None = None) -> Tensor:
        """What it makes of the patches numbered `visible`, (N, L shown), row by row; None: of all. (N, L shown, F)."""


def make_backbone(
    name: str, stem: str = "cifar", width: int | None = None, options: Mapping[str, Any] | None = None
) -> nn.Module:
    """A backbone of the catalogue, or of others (`ccl.encoders.foreign_backbones`), freshly initialised.

    `width` None is its own default (64 for ResNets, 32 for the ConvNet, 192 and 384 for the ViTs); `options` are for
    those of others.
    """
    if foreign_kind(name):
        return make_foreign(name, options=options, stem=stem, width=width)
    if name not in BACKBONES:
        raise ValueError(f"unknown backbone {name!r}; there are {', '.join(BACKBONES)}")
    return cast(nn.Module, BACKBONES[name].make({"stem": stem} | ({} if width is None else {"width": width})))


def make_head(kind: str, num_features: int, dim: int, width: int | None = None, num_layers: int = 2) -> nn.Module:
    """What turns features (N, F) into projections (N, dim); hidden layers are `width` wide, None: as the features.

    "linear" is one layer, as in MoCo v1; "mlp" has no batch norm, as in MoCo v2; "mlp_bn" has it in every hidden layer,
    as BYOL, Barlow Twins and VICReg do; "simsiam" has it on the output too, there without scale and shift.
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
    """All that one forward gives of N images."""

    features: Tensor  # (N, F), what the backbone gives
    projection: Tensor  # (N, D), what the head gives
    unit: Tensor  # (N, D), the projection at unit norm

    def __len__(self) -> int:
        return len(self.unit)

    def rows(self, chosen: slice | Tensor) -> "Embedded":
        """The same of some of the images."""
        return Embedded(self.features[chosen], self.projection[chosen], self.unit[chosen])

    def split(self, sizes: list[int]) -> "list[Embedded]":
        """Consecutive images, so many each."""
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
        self.num_features: int = num_features or cast(Backbone, backbone).num_features
        self.dim = dim
        self.head = make_head(head, self.num_features, dim, head_width, head_layers)
        self.dtype = torch.float32  # of the arithmetic; parameters, features and embeddings are float32 always
        self.channels_last = False
        self._frozen: tuple[nn.Module, ...] = ()

    @property
    def frozen_modules(self) -> tuple[nn.Module, ...]:
        """What never learns and always evaluates."""
        return self._frozen

    def freeze(self, num_stages: int = 0, batch_norm: bool = False) -> None:
        """Keep the backbone's first stages (`ccl.encoders.stages`), or all its batch norms, as they are.

        Weights and statistics alike, here and in copies made from here.
        """
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
        self._frozen = tuple(frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for part in self._frozen:
            part.training = False
        return self

    def compute_in(self, dtype: torch.dtype, channels_last: bool = False) -> None:
        """How the arithmetic is done from now on, here and in copies made from here."""
        self.dtype, self.channels_last = dtype, channels_last
        if channels_last:
            cast(Any, self).to(memory_format=torch.channels_last)  # torch's annotations don't know this form

    def features(self, images: Tensor) -> Tensor:
        """What a probe, a search or a classifier reads: (N, num_features)."""
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with self._casting(images):
            return cast(Tensor, self.backbone(images)).float()

    def tokens(self, images: Tensor, visible: Tensor) -> Tensor:
        """What a backbone with patches makes of those numbered `visible`, (N, L shown), alone: (N, L shown, F)."""
        with self._casting(images):
            return cast(PatchBackbone, self.backbone).tokens(images, visible).float()

    def embed(self, images: Tensor) -> Embedded:
        """Features, raw projections and unit embeddings from one forward."""
        features = self.features(images)
        with self._casting(images):
            projection = cast(Tensor, self.head(features)).float()
        return Embedded(features, projection, F.normalize(projection, dim=1))

    def embed_none(self, device: torch.device) -> Embedded:
        """Of no image: batch norm would refuse an empty batch."""
        features, rows = torch.zeros(0, self.num_features, device=device), torch.zeros(0, self.dim, device=device)
        return Embedded(features, rows, rows)

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(images).unit  # (N, D)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the networks themselves, so that every way into them is fast."""
        self.backbone.compile(*args, **options)
        self.head.compile(*args, **options)

    def _casting(self, images: Tensor) -> AbstractContextManager[object]:
        return nullcontext() if self.dtype is torch.float32 else torch.autocast(images.device.type, self.dtype)


def make_encoder(
    backbone: str = "resnet18",
    *,
    stem: str = "cifar",
    width: int | None = None,
    dim: int = 128,
    head: str = "mlp",
    head_width: int | None = None,
    head_layers: int = 2,
    batch_norm_groups: int = 1,
    synchronised: bool = False,
    options: Mapping[str, Any] | None = None,
    size: int = 224,
    freeze_stages: int = 0,
    freeze_batch_norm: bool = False,
    start: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> Encoder:
    """An encoder, a pure function of its arguments: freshly initialised but for the weights that it starts from.

    `size` is the side of the images that it must be able to read; `start` has this module's names.
    `synchronised` batch norms have the statistics of all ranks' rows.
    """
    with seeded(seed, "encoder"):
        network = make_backbone(backbone, stem, width, options)
        num_features = found_features(network, backbone, size) if foreign_kind(backbone) else None
        _refuse_small(network, backbone, size)
        encoder = Encoder(network, dim, head, head_width, head_layers, num_features)
    if start is not None:
        unknown = encoder.load_state_dict(dict(start), strict=False).unexpected_keys
        assert not unknown, f"not of this encoder: {unknown[:3]}"
    encoder = split_batch_norm(encoder, batch_norm_groups, synchronised)
    encoder.freeze(freeze_stages, freeze_batch_norm)
    return encoder


def _refuse_small(network: nn.Module, backbone: str, size: int) -> None:
    """A backbone with patches must find two by two of them in an image."""
    patch_size = getattr(network, "patch_size", None)
    if not foreign_kind(backbone) and patch_size is not None and size < 2 * patch_size:
        advice = "set encoder.stem=cifar" if size >= 8 else "nearest valid value: 8"
        raise UserError(
            f"views.size {size}: {backbone} has patches of {patch_size} px and needs two by two of them; {advice}"
        )
