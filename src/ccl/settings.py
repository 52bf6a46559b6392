"""Strict settings: what a run may be given, with the paper's values for CIFAR-100 as defaults.

A part's options stand in its own file; they are collected here by the catalogue, each as a section of the part's name.
Settings stop at the edge: builders read them, and no part keeps more of them than its own options.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from pydantic import Field, ValidationError, ValidationInfo, create_model, field_validator, model_validator

from ccl.catalogue import (
    COMPOSITIONS,
    OBJECTIVES,
    OLD_IMAGES,
    RETENTION,
    WEIGHT_RULES,
    known_part,
    own_classes,
    part_name,
    refuse_untrusted,
    row_of,
)
from ccl.errors import RefusedError, UserError, did_you_mean
from ccl.reading import ReadingSettings
from ccl.section import Count, Positive, Section, Weight, flattened, merged
from ccl.strategies import STRATEGIES, Strategy, refusal
from ccl.training import MemoryOptions, OptimizerOptions
from ccl.trusted_classes import named

WHOLE: Final = "whole"  # of a validation's context: the values lack only what was not known when they were written


def _names(text: str) -> list[str]:
    """Names joined by commas, but for those within the braces of a pattern."""
    return [name.strip() for name in re.split(r",(?![^{]*\})", text) if name.strip()]


class ProbeSettings(Section):
    """How accuracy is measured."""

    after: Literal["each", "last", "never"] = "each"  # after which steps a row of the accuracy matrix is written
    # after the last step also SGD with lr 30 for 100 epochs, on all classes: tables then show that accuracy
    paper_protocol: bool = False
    # by which protocol the accuracy matrix is filled; paper: T + 1 such probes for each of its rows
    matrix: Literal["cached", "paper"] = "cached"

    @property
    def adds_paper_accuracy(self) -> bool:
        """Whether the paper's protocol gives a number beside the matrix: a matrix by it has that number already."""
        return self.paper_protocol and (self.matrix == "cached" or self.after == "never")


class CheckpointSettings(Section):
    """How often a run is saved beside the ends of epochs, steps, selections and probes."""

    minutes: Positive = 10.0  # between two checkpoints within an epoch
    keep: Count = 2  # how many stay on the disk


class _ContrastWeight(Section):
    """Weights of the loss terms from the second step on, where a strategy has parts that keep the past."""

    contrast: Weight = 0.9  # authors' code: 1.0


# One weight for each part of the catalogue that has a loss.
WeightSettings = create_model(
    "WeightSettings",
    __base__=_ContrastWeight,
    **{name: (Weight, row.weight) for name, row in RETENTION.items()},  # type: ignore[call-overload]
)


class _Common(ReadingSettings):
    """What learning takes beside what reading takes, but for the options of parts."""

    # several, joined by commas on the command line: a domain-incremental stream
    dataset: list[str] = Field(["cifar100"])
    objective: str = "moco_v2"  # a row of `ccl methods`: how the present is learned
    retention: list[str] | None = None  # the parts that keep the past; None: the strategy's own
    composition: str | None = None  # what a batch holds; None: the strategy's own
    steps: Count | None = None  # None: as many as datasets or chunks, or 5
    epochs: Count = 200  # per step
    batch_size: Count = 512  # images of a batch over all processes, old ones included
    temperature: Positive = 0.1  # of the objective, and of every part that has none of its own
    trackers: list[Literal["tensorboard", "wandb", "mlflow"]] = Field([])  # each an extra: pip install '.[wandb]'
    optimizer: OptimizerOptions = OptimizerOptions()
    memory: MemoryOptions = MemoryOptions()
    weights: WeightSettings = WeightSettings()
    probe: ProbeSettings = ProbeSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()

    @field_validator("dataset", "trackers", "retention", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return _names(value) if isinstance(value, str) else value

    @field_validator("objective", "retention", "composition", "weight_rule")
    @classmethod
    def _known_parts(cls, value: Any, info: ValidationInfo) -> Any:
        for name in value if isinstance(value, list) else [value] if value else []:
            known_part(str(info.field_name), name)
        return value


if TYPE_CHECKING:
    from ccl.objectives import MoCoV2

    class _WithParts(_Common):
        moco_v2: MoCoV2.Options = MoCoV2.Options()  # the section of a part that others read by name
else:
    _rows = {**OBJECTIVES, **RETENTION, **COMPOSITIONS, **WEIGHT_RULES}
    _options = {name: getattr(row.load(), "Options", None) for name, row in _rows.items()}
    _sections = {name: (options, options()) for name, options in _options.items() if options is not None}
    _WithParts = create_model("_WithParts", __base__=_Common, **_sections)


def own_defaults(objective: str, strategy: str) -> dict[str, Any]:
    """The defaults of an objective and a strategy, by sections; unknown names have none."""
    try:
        wanted = row_of("objective", objective).defaults
    except (KeyError, UserError):
        wanted = {}
    return merged(wanted, STRATEGIES.get(strategy, Strategy()).defaults)


class Settings(_WithParts):
    """All settings of a run.

    >>> ccl.Settings(strategy="finetuning", epochs=3).memory.per_cluster
    20
    """

    def __new__(cls, **values: Any) -> Self:
        if cls is Settings:
            named({name: value.model_dump() if isinstance(value, Section) else value for name, value in values.items()})
        return super().__new__(cast(type[Self], settings_class(values) if cls is Settings else cls))

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, values: Any, info: ValidationInfo) -> Any:
        """Lay the defaults of the chosen objective and strategy below what was asked for."""
        if not isinstance(values, dict) or (info.context or {}).get(WHOLE):
            return values
        chosen = {name: values.get(name, cls.model_fields[name].default) for name in ("objective", "strategy")}
        return merged(own_defaults(str(chosen["objective"]), str(chosen["strategy"])), values)

    @property
    def method(self) -> Strategy:
        """The strategy's row with what these settings change of it."""
        own, weights = STRATEGIES[self.strategy], self.weights.model_dump()
        # A part whose weight is 0 is left out, so that it costs nothing and changes nothing.
        names = own.retention if self.retention is None else self.retention
        return replace(
            own,
            selection=own.selection and (self.memory.selection or own.selection),
            retention=tuple(name for name in names if weights[part_name(name)] > 0),
            composition=self.composition or own.composition,
            weight_rule=self.used_weight_rule,
        )

    @property
    def stream_seed(self) -> int:
        """The seed of the order of classes and images."""
        return self.seed if self.data.seed is None else self.data.seed

    @property
    def stream_kind(self) -> str:
        """`data.stream` with auto resolved."""
        if self.data.stream != "auto":
            return self.data.stream
        return "domain" if len(self.dataset) > 1 else "class"

    @model_validator(mode="after")
    def _possible(self) -> "Settings":
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
        if self.performance.channels_last is True and self.is_too_narrow_for_channels_last:
            raise ValueError(
                f"performance.channels_last=true needs encoder.width 8 or more, got {self.encoder.width}; "
                "set performance.channels_last=auto"
            )
        return self

    def _refuse_parts(self) -> None:
        """Refuse parts that lack what they need of each other, by their rows and as they are set."""
        try:
            why = refusal(self.strategy, self.method, self.objective, self.encoder.backbone)
        except UserError:  # a part at a path where there is none now: these settings are only read
            return
        if why:
            raise RefusedError(why)
        method = self.method
        what = None if method.selection is not None else f"a memory, and strategy {self.strategy} has none"
        if OLD_IMAGES not in row_of("composition", method.composition).gives:
            what = f"{OLD_IMAGES}, and composition {method.composition} has none"
        for name in map(part_name, method.retention if what else ()):
            section = getattr(self, name, None)
            if getattr(section, "target", None) == "stored":
                raise RefusedError(f"{name}.target=stored needs {what}; set {name}.target=average")
            if getattr(section, "images", None) == "old":
                raise RefusedError(f"{name}.images=old needs {what}; set {name}.images=all")


def settings_class(values: Mapping[str, Any], *, are_whole: bool = False) -> type[Settings]:
    """`Settings`, with a section for each part that these values name by its path.

    Where there is no such part, values that were written whole are read all the same.
    """
    classes = own_classes(values)
    own = tuple(dict.fromkeys(one for one in classes if one[0] != "encoder.backbone"))
    if not are_whole:
        for setting, path in classes:
            refuse_untrusted(setting, path)  # before any work
    try:
        return _class_with(own) if own else Settings
    except UserError:
        if not are_whole:
            raise
    found: dict[str, Any] = {part_name(path): (dict[str, Any], {}) for _, path in own if part_name(path) in values}
    return _extended(found, {part_name(path): 1.0 for kind, path in own if kind == "retention"})


@cache
def _class_with(parts: tuple[tuple[str, str], ...]) -> type[Settings]:
    sections: dict[str, Any] = {}
    weights: dict[str, float] = {}
    for setting, path in parts:
        name, row = part_name(path), row_of(setting, path)
        if name in Settings.model_fields or name in sections or name in weights:
            raise UserError(f"{setting} {path}: there is a setting or part called {name}; give the class another name")
        if setting == "retention":
            weights[name] = row.weight
        if (options := getattr(row.load(), "Options", None)) is None:
            continue
        try:
            sections[name] = (options, options())
        except ValidationError:
            raise UserError(f"{setting} {path}: each of its options needs a default") from None
    return _extended(sections, weights)


def _extended(sections: dict[str, Any], weights: Mapping[str, float]) -> type[Settings]:
    if weights:
        fields: dict[str, Any] = {name: (Weight, weight) for name, weight in weights.items()}
        model = create_model("WeightSettings", __base__=WeightSettings, **fields)
        sections |= {"weights": (model, model())}
    return create_model("Settings", __base__=Settings, **sections)


# What may differ when a run resumes: where things lie, who watches, how often it is saved, the epochs yet to come.
_MAY_CHANGE = ("data.root", "data.download", "data.workers", "threads", "trackers", "epochs")

# What a run fills in from the network's description where it was left open.
_FILLED_IN = ("views.mean", "views.std", "views.size")


def differences(before: Settings, now: Settings, between: str = " -> ") -> list[str]:
    """One "name: before -> now" for each setting that differs and must not."""
    return differing(flattened(before.model_dump()), flattened(now.model_dump()), between)


def differing(old: Mapping[str, Any], new: Mapping[str, Any], between: str) -> list[str]:
    """The same for plain values as `a.b`."""
    found = []
    for name in {**old, **new}:
        value, other = old.get(name), new.get(name)
        may_differ = name in _MAY_CHANGE or name.startswith("checkpoint.") or (name in _FILLED_IN and other is None)
        if value != other and not may_differ:
            found.append(f"{name}: {value}{between}{other}")
    return found
