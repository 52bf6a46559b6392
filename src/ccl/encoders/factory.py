"""Encoders by settings: a backbone of ours, of timm, of torchvision or a class of the user's own, and a head on it."""

import difflib
import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final, Literal, Self, cast

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from ccl import ranks
from ccl.catalogue import BACKBONES, TIMM, TORCHVISION, foreign_kind, imported
from ccl.encoders.batch_norm import split_batch_norm
from ccl.encoders.encoder import Encoder, evaluating
from ccl.errors import UserError, did_you_mean, how_to_install
from ccl.section import Count, CountOrZero, Section, known
from ccl.seeding import seeded

PRETRAINED: Final = "pretrained"  # encoder.weights: those that the maker of the backbone offers
_CLASSIFIERS = ("fc", "classifier", "heads", "head")  # what torchvision calls them
# What is left out in training: a view of an image is random, a network is not, so that a run can resume to the bit.
_RANDOM_LAYERS = ("Dropout", "DropPath", "StochasticDepth", "DropBlock")


class EncoderOptions(Section):
    """The encoder."""

    # Ours, "timm:NAME", "torchvision:NAME", or a class of your own, "package.module:Name" (docs/adapting.md)
    backbone: str = "resnet18"  # what turns an image into features
    options: dict[str, Any] = Field({})  # arguments for the maker of a backbone that is not ours
    # What it starts from: a .safetensors or .pt file, a folder with config.json and model.safetensors, or "pretrained",
    # which has timm or torchvision fetch theirs; None: from nothing
    weights: str | None = None
    freeze_stages: CountOrZero = 0  # the stem and so on stay as they are
    freeze_batch_norm: bool = False  # of the backbone: weights and statistics stay as they are
    # cifar: 3×3, stride 1; imagenet: 7×7, stride 2, max-pool; of a ViT: patches of 4 px, of 16 px
    stem: Literal["cifar", "imagenet"] = "cifar"
    width: Count | None = None  # None: the published one
    # mlp: no batch norm; mlp_bn: in hidden layers; simsiam: on the output too; linear: one layer, whatever head_layers
    head: Literal["mlp", "linear", "mlp_bn", "simsiam"] = "mlp"
    head_width: Count | None = None  # of hidden layers; None: as wide as the features
    head_layers: Count = 2  # linear ones, the last included
    dim: Count = 128  # of the embedding
    # parts of a batch normalised on their own; Paper: 8, as 8 GPUs would; 1: the whole batch, also over processes
    batch_norm_groups: Count = 8
    # What batch norms evaluate with: what the last step's training gathered; estimated after each step from the
    # remembered images of all; or joined from what each step's images showed when it was learned (docs/memory.md)
    statistics: Literal["running", "remembered", "accumulated"] = "running"

    @property
    def num_groups(self) -> int:
        """Batch-norm groups that a process has of its own."""
        return max(self.batch_norm_groups // ranks.size(), 1)

    @property
    def is_synchronised(self) -> bool:
        """Whether one batch-norm group holds the images of several processes."""
        return self.batch_norm_groups == 1 < ranks.size()

    @field_validator("backbone")
    @classmethod
    def _known_backbone(cls, value: str) -> str:
        return value if foreign_kind(value) else known("backbone", value, BACKBONES)

    @model_validator(mode="after")
    def _together(self) -> Self:
        is_ours = not foreign_kind(self.backbone)
        if is_ours and self.options:
            raise ValueError(f"encoder.options are for backbones of others, and {self.backbone} has none")
        if is_ours and self.weights == PRETRAINED:
            raise ValueError(
                f"encoder.weights=pretrained: ccl ships no weights for {self.backbone}; name a file, or set "
                f"encoder.backbone to timm:{self.backbone} or torchvision:{self.backbone}"
            )
        if self.freeze_batch_norm and self.statistics != "running":
            raise ValueError(
                f"encoder.freeze_batch_norm keeps the statistics that encoder.statistics={self.statistics} would "
                "replace; set encoder.statistics=running"
            )
        return self


def make_encoder(
    options: EncoderOptions = EncoderOptions(),
    *,
    size: int = 224,
    start: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> Encoder:
    """An encoder, a pure function of its arguments: freshly initialised but for the weights that it starts from.

    `size` is the side of the images that it must be able to read; `start` has this module's names.
    """
    name = options.backbone
    with seeded(seed, "encoder"):
        network = make_backbone(options)
        num_features = found_features(network, name, size) if foreign_kind(name) else None
        patch_size = getattr(network, "patch_size", None)
        if not foreign_kind(name) and patch_size is not None and size < 2 * patch_size:
            advice = "set encoder.stem=cifar" if size >= 8 else "nearest valid value: 8"
            patches = f"{name} has patches of {patch_size} px and needs two by two of them"
            raise UserError(f"views.size {size}: {patches}; {advice}")
        head = options.head, options.head_width, options.head_layers
        encoder = Encoder(network, options.dim, *head, num_features)
    if start is not None:
        unknown = encoder.load_state_dict(dict(start), strict=False).unexpected_keys
        assert not unknown, f"not of this encoder: {unknown[:3]}"
    encoder = split_batch_norm(encoder, options.num_groups, options.is_synchronised)
    encoder.freeze(options.freeze_stages, options.freeze_batch_norm)
    return encoder


def make_backbone(options: EncoderOptions) -> nn.Module:
    """A backbone of the catalogue, of timm, of torchvision or a class of the user's own, freshly initialised."""
    name, stem, width = options.backbone, options.stem, options.width
    if foreign_kind(name):
        return make_foreign(name, options=options.options, stem=stem, width=width)
    return cast(nn.Module, BACKBONES[name].make({"stem": stem} | ({} if width is None else {"width": width})))


def make_foreign(
    name: str, *, options: Mapping[str, Any] | None = None, pretrained: bool = False, **offered: Any
) -> nn.Module:
    """A network by name or class path, without its classifier; a class gets what it asks for by name of `offered`."""
    kind, rest = foreign_kind(name), name.partition(":")[2]
    make = {TIMM: _of_timm, TORCHVISION: _of_torchvision}.get(str(kind))
    if make is not None:
        backbone = make(rest, dict(options or {}), pretrained)
    else:
        backbone = _of_class(name, dict(options or {}), pretrained, offered)
    return without_random_layers(backbone)


def _of_timm(name: str, options: dict[str, Any], pretrained: bool) -> nn.Module:
    timm = _imported("timm", f"timm:{name}")
    if not timm.is_model(name.partition(".")[0]):
        raise UserError(
            f"encoder.backbone timm:{name}: timm has no model {name!r}{did_you_mean(name, timm.list_models())}"
        )
    if "checkpoint_path" in options:  # timm unpickles it, and options may come with a stranger's file
        raise UserError("encoder.options.checkpoint_path could run code; name the file by encoder.weights instead")
    return _made(f"timm:{name}", timm.create_model, name, pretrained=pretrained, num_classes=0, **options)


def _of_torchvision(name: str, options: dict[str, Any], pretrained: bool) -> nn.Module:
    models = _imported("torchvision.models", f"torchvision:{name}")
    known = models.list_models(module=models)
    if name not in known:
        advice = did_you_mean(name, known)
        raise UserError(f"encoder.backbone torchvision:{name}: torchvision has no model {name!r}{advice}")
    weights = "DEFAULT" if pretrained else None
    network = _made(f"torchvision:{name}", models.get_model, name, weights=weights, **options)
    return _without_classifier(network)


def _of_class(path: str, options: dict[str, Any], pretrained: bool, offered: Mapping[str, Any]) -> nn.Module:
    where, sign, name = path.partition(":")
    near = difflib.get_close_matches(where, [TIMM, TORCHVISION], n=1) if sign else []
    advice = f"did you mean {near[0]}:{name}?" if near else ""
    found = imported(path, "encoder.backbone", nn.Module, advice)
    asked = inspect.signature(found).parameters
    given = {key: value for key, value in offered.items() if key in asked and value is not None}
    if pretrained and "pretrained" not in asked:
        raise UserError(f"encoder.weights=pretrained: {path} takes no argument 'pretrained'; name a file of weights")
    return _made(path, found, **(given | ({"pretrained": True} if pretrained else {}) | options))


def _made(title: str, maker: Any, *arguments: Any, **options: Any) -> nn.Module:
    try:
        return cast(nn.Module, maker(*arguments, **options))
    except UserError:
        raise
    except Exception as error:  # other people's code raises anything
        raise UserError(f"encoder.backbone {title} can't be made: {_why(error)}") from error


def _imported(module: str, title: str) -> ModuleType:
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except Exception as error:  # beside another build of torch they raise a RuntimeError
        raise UserError(
            f"encoder.backbone {title} needs {package}, which can't be imported; {how_to_install('timm')}"
        ) from error


def _why(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def _without_classifier(network: nn.Module) -> nn.Module:
    """Replace, in place, a classifier's last linear layer by the identity."""
    for child in reversed(_CLASSIFIERS):
        part = getattr(network, child, None)
        linear = [key for key, value in part.named_modules() if isinstance(value, nn.Linear)] if part else []
        if linear:
            network.set_submodule(f"{child}.{linear[-1]}".rstrip("."), nn.Identity())
            break
    return network


class NoDropout(nn.Identity):
    """Replaces a dropout layer; timm's ViTs read its rate and pass it to a fused attention."""

    p = drop_prob = 0.0


def without_random_layers(network: nn.Module) -> nn.Module:
    """Replace, in place, dropout and similar layers by the identity; names and weights stay."""
    for name, module in list(network.named_modules()):
        if name and any(word in type(module).__name__ for word in _RANDOM_LAYERS):
            network.set_submodule(name, NoDropout())
    return network


def found_features(backbone: nn.Module, title: str, size: int) -> int:
    """A network's number of features, by one forward of this size; refuses a network that can't read it."""
    try:
        with evaluating(backbone):
            features = backbone(torch.zeros(2, 3, size, size))
    except Exception as error:  # other people's code raises anything
        raise UserError(
            f"encoder.backbone {title} can't read images of {size}×{size} pixels ({_why(error)}); "
            "set views.size to its own"
        ) from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"encoder.backbone {title} gives {shape} of 2 images; a backbone must give features (2, F)")
    return features.shape[1]


def reads(backbone: nn.Module, size: int) -> bool:
    """Whether a network can read images of this size."""
    try:
        found_features(backbone, "", size)
    except UserError:
        return False
    return True


def refuse_random(backbone: nn.Module, title: str, size: int) -> None:
    """Refuse a network that draws random numbers in training: a run with it could not resume to the same bits."""
    images = torch.linspace(-1, 1, 4 * 3 * size * size, device=next(backbone.parameters()).device)
    buffers = {name: buffer.clone() for name, buffer in backbone.named_buffers()}
    with torch.random.fork_rng(devices=[]), evaluating(backbone):
        backbone.train()  # only for here: afterwards every part is in the mode it came in
        before = torch.get_rng_state()
        backbone(images.view(4, 3, size, size))
        is_random = not torch.equal(before, torch.get_rng_state())
        for name, buffer in backbone.named_buffers():
            buffer.copy_(buffers[name])
    if is_random:
        raise UserError(
            f"encoder.backbone {title} draws random numbers in training, so that a run could not resume exactly; "
            "set its dropout to 0 (encoder.options)"
        )
