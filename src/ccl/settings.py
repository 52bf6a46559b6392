"""Strict settings: what a run may be given, with the paper's values for CIFAR-100 as defaults. No torch in here.

Settings stop at the edge: builders read them and pass plain keyword arguments; no part keeps a settings object.
"""

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from ccl.byte_sizes import num_bytes
from ccl.catalogue import (
    BACKBONES,
    COMPOSITIONS,
    OBJECTIVES,
    OLD_IMAGES,
    RETENTION,
    SELECTIONS,
    WEIGHT_RULES,
    foreign_kind,
)
from ccl.errors import RefusedError, did_you_mean
from ccl.strategies import STRATEGIES, Strategy, refusal

PRETRAINED: Final = "pretrained"  # encoder.weights: those that the maker of the backbone offers
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Weight = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Classes = Count | str | list[str]
Channels = Annotated[list[float], Field(min_length=3, max_length=3)]


class Section(BaseModel):
    """A group of settings: unknown keys and wrong types are errors, and nothing changes once it is made."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: sections are merged, anything else replaced."""
    values = copy.deepcopy(dict(below))
    for key, value in above.items():
        inner = values.get(key)
        values[key] = merged(inner, value) if isinstance(value, Mapping) and isinstance(inner, dict) else value
    return values


def _known(what: str, value: str, known: Iterable[str]) -> str:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}{did_you_mean(value, known)}")
    return value


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
    hue: Annotated[float, Field(ge=0.0, le=0.5)] | None = None  # how far the hue may turn; 0.5: half a circle
    blur_probability: Share | None = None  # how often it is blurred
    # Of values in 0 … 1, for red, green and blue; None: as the network or its weights say, else the recipe's
    mean: Channels | None = None
    std: Annotated[list[Positive], Field(min_length=3, max_length=3)] | None = None  # as mean, and positive
    solarise_probability: Share | None = None  # of both views


class EncoderSettings(Section):
    """What reads it."""

    # Ours, "timm:NAME", "torchvision:NAME", or a class of your own, "package.module:Name" (docs/adapting.md)
    backbone: str = "resnet18"  # what turns an image into features
    options: dict[str, Any] = {}  # arguments for the maker of a backbone that is not ours
    # What it starts from: a .safetensors or .pt file, a folder with config.json and model.safetensors, or "pretrained",
    # which has timm or torchvision fetch theirs; None: from nothing
    weights: str | None = None
    freeze_stages: CountOrZero = 0  # the stem and so on stay as they are
    freeze_batch_norm: bool = False  # of the backbone: weights and statistics stay as they are
    stem: Literal["cifar", "imagenet"] = "cifar"  # cifar: 3×3, stride 1; imagenet: 7×7, stride 2, max-pool
    width: Count | None = None  # None: the published one
    # mlp: no batch norm; mlp_bn: in hidden layers; simsiam: on the output too; linear: one layer, whatever head_layers
    head: Literal["mlp", "linear", "mlp_bn", "simsiam"] = "mlp"
    head_width: Count | None = None  # of hidden layers; None: as wide as the features
    head_layers: Count = 2  # linear ones, the last included
    dim: Count = 128  # of the embedding
    batch_norm_groups: Count = 8  # parts of a batch normalised on their own; Paper: as 8 GPUs would
    # What batch norms evaluate with: what the last step's training gathered, or estimated from the remembered images of
    # all steps after each (docs/memory.md)
    statistics: Literal["running", "remembered"] = "running"

    @field_validator("backbone")
    @classmethod
    def _known_backbone(cls, value: str) -> str:
        return value if foreign_kind(value) else _known("backbone", value, BACKBONES)

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
    trust: Positive = 0.02  # lars only: how far a layer moves, relative to its norm
    weight_decay: Weight = 5e-4  # the strength of l2
    # The rate of a stage of the backbone is so much of that of the stage after it, and the head has the full rate
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    decay_norms: bool = True  # false: no weight decay on biases and batch norm; lars never has one there
    schedule: Literal["cosine", "constant"] = "cosine"  # of the learning rate over a step
    warmup_epochs: CountOrZero = 0  # of each step, over which the learning rate rises linearly
    carry_momentum: bool = False  # authors' code: true


class MoCoSettings(Section):
    """MoCo v2."""

    queue_size: Count = 4096  # keys that are negatives
    key_momentum: Share = 0.99  # of the key encoder, per update
    final_key_momentum: Share | None = None  # at the end of each step, by a cosine; None: the same; MoCoV2+: 0.999
    reset_key_encoder: bool = False  # authors' code: true
    mask_same_image: bool = False  # leave an image's own earlier keys out of its negatives
    symmetric: bool = False  # MoCoV2+: both views are queries, each against a queue of the other's keys


class InsDiscSettings(Section):
    """InsDisc."""

    num_noise: Count | None = None  # None: the exact softmax over the bank; InsDisc on ImageNet: 4096
    bank_momentum: Share = 0.5  # of an image's vector in the bank
    proximal: Weight = 0.0  # the weight of the squared distance to the image's vector in the bank


class BYOLSettings(Section):
    """BYOL."""

    predictor_width: Count = 1024  # of the hidden layer; BYOL: 4096
    momentum: Share = 0.99  # of the target in a step's first update
    final_momentum: Share = 1.0  # and in its last, by a cosine


class SimSiamSettings(Section):
    """SimSiam."""

    predictor_width: Count | None = None  # of the hidden layer; None: a quarter of encoder.dim, as in SimSiam


class BarlowTwinsSettings(Section):
    """Barlow Twins."""

    off_diagonal: Weight = 5e-3  # the weight of correlations between dimensions
    scale: Positive = 0.02  # published with LARS: 0.1, where plain SGD takes too large steps


class VICRegSettings(Section):
    """VICReg."""

    # Published with LARS: 25, 25 and 1, where plain SGD takes too large steps. The proportion is the same.
    invariance: Weight = 5.0
    variance: Weight = 5.0  # the weight of the spread that each dimension must have
    covariance: Weight = 0.2  # the weight of correlations between dimensions


class MemorySettings(Section):
    """What is kept of each step."""

    per_cluster: CountOrZero = 20  # of each step, so the memory grows with the stream
    clusters: Count | Literal["estimate"] | None = None  # None: the number of classes in the step (docs/memory.md)
    # At most so many images ("300") or bytes of their files ("50MB") in all, each step an equal share; None: no limit.
    # A share is filled in turns over the clusters: per_cluster, top_up and replacement then say nothing.
    budget: Count | str | None = None
    selection: str | None = None  # a row of `ccl methods`; None: the strategy's own
    num_views: Annotated[int, Field(ge=2)] = 6  # over which an image's variance is taken
    include_plain: bool = False  # authors' code: true
    score: Literal["variance", "distance_to_mean"] = "variance"  # authors' code: distance_to_mean
    top_up: bool = True  # authors' code: false
    replacement: bool = False  # authors' code: true

    @field_validator("selection")
    @classmethod
    def _known_selection(cls, value: str | None) -> str | None:
        return None if value is None else _known("selection", value, SELECTIONS)

    @field_validator("budget")
    @classmethod
    def _a_size(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str):
            num_bytes(value)
        return value


class DistillationSettings(Section):
    """The momentum teacher."""

    momentum: Share = 0.996  # of the teacher, per epoch
    student_temperature: Positive | None = None  # None: the objective's; authors' code: 0.07
    teacher_temperature: Positive | None = None  # None: the student's; authors' code: 0.04
    rows: Literal["plain", "view"] = "plain"  # authors' code: view
    reduction: Literal["mean", "sum"] = "mean"  # of the loss over rows
    plain_images: Literal["old", "batch"] = "old"  # authors' code: batch


class QueueSettings(Section):
    """The extra sample queue."""

    size: Count = 128  # authors' code: 256
    mask_same_image: bool = False  # leave an image's own keys out of its negatives


class ShareSettings(Section):
    """A share of old images in every batch."""

    old: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5  # of each batch from the second step on
    # as many updates an epoch as pooled images have, or as many as show every new image once
    count: Literal["same_updates", "every_new_image"] = "same_updates"
    most_repeats: Positive | None = None  # an old image is shown at most so often an epoch, on average; None: no limit


class LumpSettings(Section):
    """New images mixed with old ones."""

    alpha: Positive = 0.4  # the mixing weight of a batch is drawn from Beta(alpha, alpha)
    count: Literal["same_updates", "every_new_image"] = "same_updates"  # as share.count


class PredictiveSettings(Section):
    """Predictive distillation from a frozen copy."""

    space: Literal["projection", "features"] = "projection"  # features: PFR
    distance: Literal["cosine", "info_nce", "barlow", "mse"] | None = None  # None: the objective's; of features: cosine
    images: Literal["all", "new", "old"] = "all"  # which images are distilled
    hidden: Count = 512  # authors' code: 2048; PFR's: 256
    predictor: Literal["keep", "restart"] = "keep"  # over steps
    teacher_statistics: Literal["running", "batch"] = "running"  # authors' code: batch
    distance_temperature: Positive | None = None  # of info_nce; None: the run's


class PNRSettings(Section):
    """Past negatives."""

    queue_size: Count = 4096  # of the frozen copy's keys, where the objective has a queue or bank too
    hidden: Count = 512  # authors' code: 2048
    teacher_statistics: Literal["running", "batch"] = "running"  # authors' code: batch, after its first validation


class CrossTaskSettings(Section):
    """Cross-task contrast on a second head."""

    past: Literal["replay", "distillation"] = "replay"  # Osiris-R, Osiris-D


class AlignmentSettings(Section):
    """Alignment with a slow average of the encoder, or with stored embeddings."""

    momentum: Share = 0.999  # of the average, per update
    hidden: Count = 512  # units of the aligner
    images: Literal["old", "all"] = "old"  # all: CLA-b
    target: Literal["average", "stored"] = "average"  # CLA-E, CLA-R


class MergeSettings(Section):
    """Weights of a step meet those from before it."""

    share: Share = 0.5  # of the new weights; 1: as without the rule


class AverageSettings(Section):
    """A moving average of the student's weights is what is used."""

    momentum: Share = 0.999  # the mean of all updates so far, until these are as many as it remembers


class _ContrastWeight(Section):
    """Weights of the loss terms from the second step on, where a strategy has parts that keep the past."""

    contrast: Weight = 0.9  # authors' code: 1.0


# One weight for each part of the catalogue that has a loss.
WeightSettings = create_model(
    "WeightSettings",
    __base__=_ContrastWeight,
    **{name: (Weight, row.weight) for name, row in RETENTION.items()},  # type: ignore[call-overload]
)


class ProbeSettings(Section):
    """How accuracy is measured."""

    after: Literal["each", "last", "never"] = "each"  # after which steps a row of the accuracy matrix is written
    paper_protocol: bool = False  # also SGD with lr 30 for 100 epochs, after the last step


class PerformanceSettings(Section):
    """How the arithmetic is done, beside its precision; neither changes what is learned, but for rounding."""

    channels_last: Literal["auto"] | bool = "auto"  # auto: on CPU and CUDA below float32, unless batch norm is split
    compile: bool = False  # torch.compile: minutes at the start, and a compiler must be there


class CheckpointSettings(Section):
    """How often a run is saved beside the ends of epochs, steps, selections and probes."""

    minutes: Positive = 10.0  # between two checkpoints within an epoch
    keep: Count = 2  # how many stay on the disk


class Settings(Section):
    """All settings of a run.

    >>> ccl.Settings(strategy="finetuning", epochs=3).memory.per_cluster
    20
    """

    dataset: list[str] = ["cifar100"]  # several, joined by commas on the command line: a domain-incremental stream
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
    trackers: list[Literal["tensorboard", "wandb", "mlflow"]] = []  # each an extra: pip install '.[wandb]'
    data: DataSettings = DataSettings()
    views: ViewSettings = ViewSettings()
    encoder: EncoderSettings = EncoderSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    moco_v2: MoCoSettings = MoCoSettings()
    insdisc: InsDiscSettings = InsDiscSettings()
    byol: BYOLSettings = BYOLSettings()
    simsiam: SimSiamSettings = SimSiamSettings()
    barlow_twins: BarlowTwinsSettings = BarlowTwinsSettings()
    vicreg: VICRegSettings = VICRegSettings()
    memory: MemorySettings = MemorySettings()
    distillation: DistillationSettings = DistillationSettings()
    extra_sample_queue: QueueSettings = QueueSettings()
    share: ShareSettings = ShareSettings()
    lump: LumpSettings = LumpSettings()
    predictive_distillation: PredictiveSettings = PredictiveSettings()
    pnr: PNRSettings = PNRSettings()
    cross_task: CrossTaskSettings = CrossTaskSettings()
    alignment: AlignmentSettings = AlignmentSettings()
    merge: MergeSettings = MergeSettings()
    average: AverageSettings = AverageSettings()
    weights: WeightSettings = WeightSettings()
    probe: ProbeSettings = ProbeSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    performance: PerformanceSettings = PerformanceSettings()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, values: Any) -> Any:
        """What the chosen objective and strategy want by default lies below what was asked for."""
        if not isinstance(values, dict):
            return values
        chosen = {name: values.get(name, cls.model_fields[name].default) for name in ("objective", "strategy")}
        rows = (OBJECTIVES.get(str(chosen["objective"])), STRATEGIES.get(str(chosen["strategy"])))
        below: dict[str, Any] = {}
        for row in rows:
            below = merged(below, row.defaults if row else {})
        return merged(below, values)

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
        return _known("strategy", value, STRATEGIES)

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value: str) -> str:
        return _known("objective", value, OBJECTIVES)

    @field_validator("retention")
    @classmethod
    def _known_retention(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else [_known("part", name, RETENTION) for name in value]

    @field_validator("composition")
    @classmethod
    def _known_composition(cls, value: str | None) -> str | None:
        return None if value is None else _known("composition", value, COMPOSITIONS)

    @field_validator("weight_rule")
    @classmethod
    def _known_weight_rule(cls, value: str | None) -> str | None:
        return None if value is None else _known("weight rule", value, WEIGHT_RULES)

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if value.split(":")[0] not in ("auto", "cpu", "cuda", "mps"):
            raise ValueError("a device is auto, cpu, cuda, cuda:1 or mps")
        return value

    @property
    def method(self) -> Strategy:
        """The strategy's row with what these settings change of it."""
        own, weights = STRATEGIES[self.strategy], self.weights.model_dump()
        # A part whose weight is 0 is left out, so that it costs nothing and changes nothing.
        names = own.retention if self.retention is None else self.retention
        return replace(
            own,
            selection=own.selection and (self.memory.selection or own.selection),
            retention=tuple(name for name in names if weights[name] > 0),
            composition=self.composition or own.composition,
            weight_rule=self.weight_rule or own.weight_rule,
        )

    @property
    def stream_seed(self) -> int:
        """What draws the order of classes and images."""
        return self.seed if self.data.seed is None else self.data.seed

    @property
    def stream_kind(self) -> str:
        """What `data.stream` says, auto resolved."""
        if self.data.stream != "auto":
            return self.data.stream
        return "domain" if len(self.dataset) > 1 else "class"

    @model_validator(mode="after")
    def _possible(self) -> "Settings":
        if why := refusal(self.strategy, self.method, self.objective):
            raise RefusedError(why)
        self._refuse_parts()
        if self.optimizer.warmup_epochs >= self.epochs > 1:
            raise ValueError(
                f"optimizer.warmup_epochs {self.optimizer.warmup_epochs} leaves nothing of {self.epochs} epochs; "
                f"nearest valid value: {self.epochs - 1}"
            )
        kind = self.stream_kind
        if self.data.mixing is not None and kind not in ("blurred", "free"):
            raise ValueError(f"data.mixing is for data.stream=blurred or free, not {kind}; set data.stream=blurred")
        if self.data.chunk is not None and kind != "free":
            raise ValueError(f"data.chunk is for data.stream=free, not {kind}; set steps instead, or data.stream=free")
        if isinstance(self.data.classes, dict):
            for name in self.data.classes:
                if name not in self.dataset:
                    raise ValueError(f"data.classes names {name!r}, no dataset here{did_you_mean(name, self.dataset)}")
        if self.batch_size % self.encoder.batch_norm_groups:
            groups = self.encoder.batch_norm_groups
            nearest = max(groups, round(self.batch_size / groups) * groups)
            raise ValueError(
                f"batch_size {self.batch_size} can't be split in {groups} encoder.batch_norm_groups; "
                f"nearest valid value: {nearest}"
            )
        return self

    def _refuse_parts(self) -> None:
        """What a part needs as it is set, beside what its row says."""
        method = self.method
        what = None if method.selection is not None else f"a memory, and strategy {self.strategy} has none"
        if OLD_IMAGES not in COMPOSITIONS[method.composition].gives:
            what = f"{OLD_IMAGES}, and composition {method.composition} has none"
        for name in method.retention if what else ():
            section = getattr(self, name, None)
            if getattr(section, "target", None) == "stored":
                raise ValueError(f"{name}.target=stored needs {what}; set {name}.target=average")
            if getattr(section, "images", None) == "old":
                raise ValueError(f"{name}.images=old needs {what}; set {name}.images=all")
        if "pnr" in method.retention and self.objective == "insdisc" and self.insdisc.num_noise is not None:
            raise ValueError("pnr needs the whole bank as negatives; set insdisc.num_noise=null")


# What may differ when a run resumes: where things lie, who watches, how often it is saved, the epochs yet to come.
MAY_CHANGE = frozenset(
    {"data.root", "data.download", "data.workers", "threads", "trackers", "epochs"}
    | {"checkpoint.minutes", "checkpoint.keep"}
)

# What a run fills in from the network's description where it was left open.
FILLED_IN = frozenset({"views.mean", "views.std", "views.size"})


def differences(before: Settings, now: Settings) -> list[str]:
    """One "name: before -> now" for each setting that differs and must not."""
    return _differences(before.model_dump(), now.model_dump(), "")


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str) -> list[str]:
    found = []
    for name, value in before.items():
        if isinstance(value, dict) and isinstance(now[name], dict) and value.keys() == now[name].keys():
            found += _differences(value, now[name], f"{prefix}{name}.")
        elif value != now[name] and not _may_differ(prefix + name, now[name]):
            found.append(f"{prefix}{name}: {value} -> {now[name]}")
    return found


def _may_differ(name: str, now: Any) -> bool:
    return name in MAY_CHANGE or (name in FILLED_IN and now is None)
