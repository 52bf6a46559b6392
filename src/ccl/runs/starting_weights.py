"""The weights that a run starts from, and the image format of their network."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from ccl.catalogue import TORCHVISION, foreign_kind
from ccl.encoders import EncoderOptions, make_backbone
from ccl.encoders.factory import PRETRAINED, found_features, make_foreign
from ccl.encoders.weights import ImageFormat, Matched, matched, read_config, read_weights
from ccl.settings import Settings
from ccl.views.recipes import IMAGENET_MEAN, IMAGENET_STD

_BACKBONE = "backbone."  # before its names in an encoder's


@dataclass(frozen=True)
class Start:
    """The weights that an encoder starts from."""

    tensors: dict[str, Tensor]  # by the encoder's names
    line: str  # what was loaded and what not
    sha256: str  # of the file; "" where there is none


def resolved(settings: Settings) -> Settings:
    """The settings with what was left open of the images' size and normalisation, as the network describes it.

    Raises UserError where the network can't be made, or can't read images of that size.
    """
    options = settings.encoder
    if not foreign_kind(options.backbone) and options.weights is None:
        return settings
    network = make_backbone(options) if foreign_kind(options.backbone) else None
    wanted = _wanted(options, network)
    known = {"mean": wanted.mean and list(wanted.mean), "std": wanted.std and list(wanted.std), "size": wanted.size}
    left_open = {key: value for key, value in known.items() if value and getattr(settings.views, key) is None}
    settings = settings.model_copy(update={"views": settings.views.model_copy(update=left_open)})
    if network is not None:
        found_features(network, options.backbone, settings.views.to_recipe().size)
    return settings


def _wanted(options: EncoderOptions, network: nn.Module | None) -> ImageFormat:
    """As the weights say, else as the network does."""
    wanted = ImageFormat()
    if options.weights not in (None, PRETRAINED):
        wanted = ImageFormat.from_config(read_config(Path(str(options.weights))))
    if network is not None:
        wanted = wanted.over(ImageFormat.of_module(network))
    if foreign_kind(options.backbone) == TORCHVISION:
        wanted = wanted.over(ImageFormat(IMAGENET_MEAN, IMAGENET_STD, 224))
    return wanted


def build_start(settings: Settings) -> Start | None:
    """The weights that the settings name, matched to their network; None where it begins with nothing."""
    options = settings.encoder
    if options.weights is None:
        return None
    if options.weights == PRETRAINED:
        network = make_foreign(options.backbone, options=options.options, pretrained=True, width=options.width)
        tensors = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        found, sha256 = Matched(f"{options.backbone}, pretrained", tensors, len(tensors)), ""
    else:
        file = read_weights(Path(options.weights))
        found, sha256 = matched(file, make_backbone(options), options.backbone), file.sha256
    named = {f"{_BACKBONE}{name}": tensor for name, tensor in found.tensors.items()}
    return Start(named, found.line, sha256)
