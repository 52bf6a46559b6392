"""What reads images, by its settings: the device, the encoder, and how images are shown to it."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import ConfigDict, ValidationError, field_validator
from torch import Tensor

from ccl import ranks
from ccl.encoders import Encoder, EncoderOptions, make_encoder
from ccl.errors import UserError
from ccl.section import Count, CountOrZero, Fraction, Section, known
from ccl.settings_files import without_gone
from ccl.strategies import STRATEGIES
from ccl.training.precision import choose
from ccl.views import Viewer, ViewOptions

Classes = Count | str | list[str]


class DataSettings(Section):
    """Where images come from."""

    root: str | None = None  # None: CCL_DATA, else ./data
    download: bool = False  # fetch CIFAR from its official address if it is absent
    # How the images are cut in steps (docs/streams.md); auto: domain for several datasets, class for one
    stream: Literal["auto", "class", "domain", "data", "blurred", "free"] = "auto"
    # blurred: the share of a step's images that arrive in others; free: how far classes overlap in time; None: 0.2
    mixing: Fraction | None = None
    chunk: Count | None = None  # free: images of a step, and `steps` follows from it; None: equal ones, as `steps` says
    seed: CountOrZero | None = None  # of the order of classes and images alone; None: the run's own seed
    resize: Count | None = None  # bring every image to this side once and keep all in memory
    # The first so many, a file of names, or names; or one of these for some datasets of several, by their names.
    classes: Classes | dict[str, Classes] | None = None
    images_per_class: Count | None = None  # at most so many of each class, the first ones
    workers: CountOrZero = 2  # processes that decode files; in-memory sets need none


class PerformanceSettings(Section):
    """Performance of the arithmetic; changes nothing but rounding."""

    channels_last: Literal["auto"] | bool = "auto"  # auto: on CPU and CUDA below float32, unless batch norm is split
    compile: bool = False  # torch.compile: minutes at the start, and a compiler must be there


class ReadingSettings(Section):
    """The settings without which a version of an encoder can't read images; those of learning are laid on top."""

    seed: CountOrZero = 0  # of class order, initialisation and every draw
    device: str = "auto"  # auto, cpu, cuda, cuda:1 or mps
    # auto: float32 on CPU and MPS; on CUDA bfloat16, or float16 with scaled losses where that is missing
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: Count | None = None  # None: as torch finds them
    strategy: str = "ccl"  # a row of `ccl methods`: what is kept of a step, and what uses it
    weight_rule: str | None = None  # what becomes of weights between updates or steps; None: the strategy's own
    data: DataSettings = DataSettings()
    views: ViewOptions = ViewOptions()
    encoder: EncoderOptions = EncoderOptions()
    performance: PerformanceSettings = PerformanceSettings()

    @field_validator("strategy")
    @classmethod
    def _known_strategy(cls, value: str) -> str:
        return known("strategy", value, STRATEGIES)

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if value.split(":")[0] not in ("auto", "cpu", "cuda", "mps"):
            raise ValueError("a device is auto, cpu, cuda, cuda:1 or mps")
        return value

    @property
    def is_too_narrow_for_channels_last(self) -> bool:
        """Below 8 channels torch 2.13 corrupts memory in the backward pass of a ResNet's strided convolutions."""
        return self.encoder.backbone.startswith("resnet") and (self.encoder.width or 64) < 8

    @property
    def used_weight_rule(self) -> str | None:
        """The one asked for, or the strategy's own."""
        return self.weight_rule or STRATEGIES[self.strategy].weight_rule


class _Written(ReadingSettings):
    model_config = ConfigDict(extra="ignore")  # settings of learning, and of parts


def validated_reading_settings(values: Mapping[str, Any], where: str) -> ReadingSettings:
    """Those in the settings that an encoder was learned with; no part of the method is imported."""
    try:
        return _Written.model_validate(without_gone(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise UserError(f"{where}: {name}: {first['msg'].removeprefix('Value error, ')}") from None


def build_viewer(settings: ReadingSettings, device: torch.device) -> Viewer:
    """The viewer of training and selection, and of plain images in the probe."""
    return Viewer(settings.views.to_recipe(), settings.seed, device, settings.data.workers)


def build_encoder(
    settings: ReadingSettings, device: torch.device, start: Mapping[str, Tensor] | None = None
) -> Encoder:
    """The student, freshly initialised from the seed, but for the weights that it starts from."""
    encoder = make_encoder(settings.encoder, size=settings.views.to_recipe().size, start=start, seed=settings.seed)
    dtype = choose(settings.precision, device)
    encoder.compute_in(dtype, uses_channels_last(settings, device, dtype))
    return encoder.to(device)


def uses_channels_last(settings: ReadingSettings, device: torch.device, dtype: torch.dtype) -> bool:
    asked = settings.performance.channels_last
    if asked != "auto":
        return asked
    # A CPU's convolutions and tensor cores read channels last (docs/performance.md); split batch norm lays groups side
    # by side as channels, and would copy every time. Never by timing, so that bits are a function of the settings.
    is_faster = device.type == "cpu" or (device.type == "cuda" and dtype is not torch.float32)
    return is_faster and settings.encoder.batch_norm_groups == 1 and not settings.is_too_narrow_for_channels_last


def build_device(settings: ReadingSettings) -> torch.device:
    """The device asked for, or the best there is, each process its own; sets the number of threads too."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    name, is_alone = settings.device, not ranks.is_launched()
    if name == "auto":
        has_mps = is_alone and torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    if not is_alone and name not in ("cpu", "cuda"):
        raise UserError(f"device {name} is one device for several processes; set device=cuda, cpu or auto")
    if not is_alone and name == "cuda":
        name = f"cuda:{ranks.local_rank()}"
    kind, _, number = name.partition(":")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device {name} is not there: torch sees {torch.cuda.device_count()} CUDA devices; try device=cpu"
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("device mps is not there; try device=cpu")
    if kind == "cuda" and not is_alone:
        torch.cuda.set_device(int(number))  # where messages between processes live
    device = torch.device(name)
    choose(settings.precision, device)  # refused here, before any data is read
    return device
