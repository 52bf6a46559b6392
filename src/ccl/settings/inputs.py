"""What is learned from, what reads it and what moves its weights."""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from ccl.catalogue import BACKBONES, COMPOSITIONS, OBJECTIVES, RETENTION, WEIGHT_RULES, foreign_kind
from ccl.settings.section import Count, CountOrZero, Positive, Section, Share, Weight, known
from ccl.strategies import STRATEGIES

PRETRAINED: Final = "pretrained"  # encoder.weights: those that the maker of the backbone offers
Classes = Count | str | list[str]
Channels = Annotated[list[float], Field(min_length=3, max_length=3)]


class DataSettings(Section):
    """Where images come from."""

    root: str | None = None  # None: CCL_DATA, else ./data
    download: bool = False  # fetch CIFAR from its official address if it is absent
    # How the images are cut in steps (docs/streams.md); auto: domain for several datasets, class for one
    stream: Literal["auto", "class", "domain", "data", "blurred", "free"] = "auto"
    # blurred: the share of a step's images that arrive in others; free: how far classes overlap in time; None: 0.2
    mixing: Share | None = None
    chunk: Count | None = None  # free: images of a step, and `steps` follows from it; None: equal ones, as `steps` says
    seed: CountOrZero | None = None  # of the order of classes and images alone; None: the run's own seed
    resize: Count | None = None  # bring every image to this side once and keep all in memory
    # The first so many, a file of names, or names; or one of these for some datasets of several, by their names.
    classes: Classes | dict[str, Classes] | None = None
    images_per_class: Count | None = None  # at most so many of each class, the first ones
    workers: CountOrZero = 2  # processes that decode files; in-memory sets need none


class ViewSettings(Section):
    """How an image is seen; None leaves the recipe's own value."""

    # A published augmentation, whose values hold where those below are None
    recipe: Literal["moco_cifar", "moco_imagenet", "simclr", "insdisc", "plain"] = "moco_cifar"
    size: Count | None = None  # side of a view in pixels
    min_scale: Share | None = None  # the smallest crop, as a share of the image's area
    flip: Share | None = None  # how often a view is mirrored
    grey_probability: Share | None = None  # how often it loses its colours
    jitter_probability: Share | None = None  # how often brightness, contrast, saturation and hue change
    blur_probability: Share | None = None  # how often it is blurred
    # Of values in 0 … 1, for red, green and blue; None: as the network or its weights say, else the recipe's
    mean: Channels | None = None
    std: Annotated[list[Positive], Field(min_length=3, max_length=3)] | None = None  # as mean, and positive
    solarise_probability: Share | None = None  # of both views


class EncoderSettings(Section):
    """What reads it."""

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

    @field_validator("backbone")
    @classmethod
    def _known_backbone(cls, value: str) -> str:
        return value if foreign_kind(value) else known("backbone", value, BACKBONES)

    @model_validator(mode="after")
    def _together(self) -> "EncoderSettings":
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


class OptimizerSettings(Section):
    """What moves the weights; its schedule restarts at each step."""

    name: Literal["sgd", "lars", "adamw"] = "sgd"  # the optimizer
    learning_rate: Positive = 0.06  # where the schedule of each step begins
    momentum: Share = 0.9  # adamw: its first beta
    beta2: Share = 0.999  # adamw only
    weight_decay: Weight = 5e-4  # the strength of l2
    # The rate of a stage of the backbone is so much of that of the stage after it, and the head has the full rate
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    decay_norms: bool = True  # false: no weight decay on biases and batch norm; lars never has one there
    schedule: Literal["cosine", "constant"] = "cosine"  # of the learning rate over a step
    warmup_epochs: CountOrZero = 0  # of each step, over which the learning rate rises linearly


class TopSettings(Section):
    """Settings without a section, and the sections above: the first fields of `Settings`."""

    # several, joined by commas on the command line: a domain-incremental stream
    dataset: list[str] = Field(["cifar100"])
    strategy: str = "ccl"  # a row of `ccl methods`: what is kept of a step, and what uses it
    objective: str = "moco_v2"  # a row of `ccl methods`: how the present is learned
    retention: list[str] | None = None  # the parts that keep the past; None: the strategy's own
    composition: str | None = None  # what a batch holds; None: the strategy's own
    weight_rule: str | None = None  # what becomes of weights between updates or steps; None: the strategy's own
    steps: Count | None = None  # None: as many as datasets or chunks, or 5
    epochs: Count = 200  # per step
    batch_size: Count = 512  # images of a batch over all processes, old ones included
    temperature: Positive = 0.1  # of the objective, and of every part that has none of its own
    seed: CountOrZero = 0  # of class order, initialisation and every draw
    device: str = "auto"  # auto, cpu, cuda, cuda:1 or mps
    # auto: float32 on CPU and MPS; on CUDA bfloat16, or float16 with scaled losses where that is missing
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: Count | None = None  # None: as torch finds them
    trackers: list[Literal["tensorboard", "wandb", "mlflow"]] = Field([])  # each an extra: pip install '.[wandb]'
    data: DataSettings = DataSettings()
    views: ViewSettings = ViewSettings()
    encoder: EncoderSettings = EncoderSettings()
    optimizer: OptimizerSettings = OptimizerSettings()

    @field_validator("dataset", "trackers", "retention", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        names = re.split(r",(?![^{]*\})", value)  # not within the braces of a pattern
        return [name.strip() for name in names if name.strip()]

    @field_validator("strategy")
    @classmethod
    def _known_strategy(cls, value: str) -> str:
        return known("strategy", value, STRATEGIES)

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value: str) -> str:
        return known("objective", value, OBJECTIVES)

    @field_validator("retention")
    @classmethod
    def _known_retention(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else [known("part", name, RETENTION) for name in value]

    @field_validator("composition")
    @classmethod
    def _known_composition(cls, value: str | None) -> str | None:
        return None if value is None else known("composition", value, COMPOSITIONS)

    @field_validator("weight_rule")
    @classmethod
    def _known_weight_rule(cls, value: str | None) -> str | None:
        return None if value is None else known("weight rule", value, WEIGHT_RULES)

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if value.split(":")[0] not in ("auto", "cpu", "cuda", "mps"):
            raise ValueError("a device is auto, cpu, cuda, cuda:1 or mps")
        return value
