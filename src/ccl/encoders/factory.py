"""Encoders by settings: a backbone of ours, of timm, of torchvision or a class of the user's own, and a head on it.

A backbone gives features (N, F); what others made loses its classifier and dropout, and is tried on images first.
"""

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from ccl.catalogue import BACKBONES, TIMM, TORCHVISION, foreign_kind
from ccl.encoders.batch_norm import split_batch_norm
from ccl.encoders.encoder import Encoder, evaluating
from ccl.errors import UserError, did_you_mean, how_to_install
from ccl.seeding import seeded

_CLASSIFIERS = ("fc", "classifier", "heads", "head")  # what torchvision calls them
# What is left out in training: a view of an image is random, a network is not, so that a run can resume to the bit.
_RANDOM_LAYERS = ("Dropout", "DropPath", "StochasticDepth", "DropBlock")


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


def make_backbone(
    name: str, stem: str = "cifar", width: int | None = None, options: Mapping[str, Any] | None = None
) -> nn.Module:
    """A backbone of the catalogue, of timm, of torchvision or a class of the user's own, freshly initialised.

    `width` None is its own default (64 for ResNets, 32 for the ConvNet, 192 and 384 for the ViTs); `options` are for
    those of others.
    """
    if foreign_kind(name):
        return make_foreign(name, options=options, stem=stem, width=width)
    if name not in BACKBONES:
        raise ValueError(f"unknown backbone {name!r}; there are {', '.join(BACKBONES)}")
    return cast(nn.Module, BACKBONES[name].make({"stem": stem} | ({} if width is None else {"width": width})))


def make_foreign(
    name: str, *, options: Mapping[str, Any] | None = None, pretrained: bool = False, **offered: Any
) -> nn.Module:
    """A network by "timm:NAME", "torchvision:NAME" or a class's path, without its classifier.

    `options` are arguments of its maker, and a class gets by name what it asks for of what is offered beside.
    """
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
        raise UserError(f"encoder.backbone timm:{name}: timm has no model {name!r}{_near(name, timm.list_models())}")
    return _made(f"timm:{name}", timm.create_model, name, pretrained=pretrained, num_classes=0, **options)


def _of_torchvision(name: str, options: dict[str, Any], pretrained: bool) -> nn.Module:
    models = _imported("torchvision.models", f"torchvision:{name}")
    known = models.list_models(module=models)
    if name not in known:
        raise UserError(f"encoder.backbone torchvision:{name}: torchvision has no model {name!r}{_near(name, known)}")
    weights = "DEFAULT" if pretrained else None
    network = _made(f"torchvision:{name}", models.get_model, name, weights=weights, **options)
    return _without_classifier(network)


def _of_class(path: str, options: dict[str, Any], pretrained: bool, offered: Mapping[str, Any]) -> nn.Module:
    where, sign, name = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        module = importlib.import_module(where)
    except Exception as error:  # other people's code raises anything
        near = difflib.get_close_matches(where, [TIMM, TORCHVISION], n=1) if sign == ":" else []
        hint = f"did you mean {near[0]}:{name}?" if near else "it must be installed, or its folder be on PYTHONPATH"
        raise UserError(f"encoder.backbone {path}: can't import {where} ({_why(error)}); {hint}") from error
    found = getattr(module, name, None)
    # A class of networks and nothing else: settings may come from a stranger, and must not call any function there is.
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        classes = [
            key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, nn.Module)
        ]
        raise UserError(f"encoder.backbone {path}: {where} has no torch.nn.Module class {name!r}{_near(name, classes)}")
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


def _near(name: str, known: Iterable[str]) -> str:
    options = list(known)
    return did_you_mean(name, options) if options else ""


def _without_classifier(network: nn.Module) -> nn.Module:
    """In place: the last linear layer of what classifies becomes the identity."""
    for child in reversed(_CLASSIFIERS):
        part = getattr(network, child, None)
        linear = [key for key, value in part.named_modules() if isinstance(value, nn.Linear)] if part else []
        if linear:
            network.set_submodule(f"{child}.{linear[-1]}".rstrip("."), nn.Identity())
            break
    return network


class NoDropout(nn.Identity):
    """What stands where a dropout was; timm's ViTs read its rate and give it to a fused attention."""

    p = drop_prob = 0.0


def without_random_layers(network: nn.Module) -> nn.Module:
    """In place: dropout and its kin become the identity; names and weights stay."""
    for name, module in list(network.named_modules()):
        if name and any(word in type(module).__name__ for word in _RANDOM_LAYERS):
            network.set_submodule(name, NoDropout())
    return network


def found_features(backbone: nn.Module, title: str, size: int) -> int:
    """How many features it gives of an image of this size, by one forward; refuses what can't read one."""
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
    """Whether it can read images of this size."""
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
