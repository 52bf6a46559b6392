"""All settings of a run, and which of them are possible together."""

from dataclasses import replace
from typing import Any, Literal

from pydantic import ValidationInfo, model_validator

from ccl.catalogue import COMPOSITIONS, OBJECTIVES, OLD_IMAGES
from ccl.compatibility import backbone_refusal, refusal
from ccl.errors import RefusedError, did_you_mean
from ccl.settings.parts import PartSettings
from ccl.settings.section import Count, Positive, Section, merged
from ccl.strategies import STRATEGIES, Strategy


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


class PerformanceSettings(Section):
    """How the arithmetic is done, beside its precision; neither changes what is learned, but for rounding."""

    channels_last: Literal["auto"] | bool = "auto"  # auto: on CPU and CUDA below float32, unless batch norm is split
    compile: bool = False  # torch.compile: minutes at the start, and a compiler must be there


class CheckpointSettings(Section):
    """How often a run is saved beside the ends of epochs, steps, selections and probes."""

    minutes: Positive = 10.0  # between two checkpoints within an epoch
    keep: Count = 2  # how many stay on the disk


WHOLE = "whole"  # of a validation's context: the values lack only what was not known when they were written


def own_defaults(objective: str, strategy: str) -> dict[str, Any]:
    """What an objective and a strategy want by default, by sections; names without a row want nothing."""
    below: dict[str, Any] = {}
    for row in (OBJECTIVES.get(objective), STRATEGIES.get(strategy)):
        below = merged(below, row.defaults if row else {})
    return below


class Settings(PartSettings):
    """All settings of a run.

    >>> ccl.Settings(strategy="finetuning", epochs=3).memory.per_cluster
    20
    """

    probe: ProbeSettings = ProbeSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    performance: PerformanceSettings = PerformanceSettings()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, values: Any, info: ValidationInfo) -> Any:
        """What the chosen objective and strategy want by default lies below what was asked for."""
        if not isinstance(values, dict) or (info.context or {}).get(WHOLE):
            return values
        chosen = {name: values.get(name, cls.model_fields[name].default) for name in ("objective", "strategy")}
        return merged(own_defaults(str(chosen["objective"]), str(chosen["strategy"])), values)

    @property
    def is_too_narrow_for_channels_last(self) -> bool:
        """Below 8 channels torch 2.13 corrupts memory in the backward pass of a ResNet's strided convolutions."""
        return self.encoder.backbone.startswith("resnet") and (self.encoder.width or 64) < 8

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
        why = refusal(self.strategy, self.method, self.objective)
        why = why or backbone_refusal(self.objective, self.encoder.backbone)
        if why:
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
        if self.performance.channels_last is True and self.is_too_narrow_for_channels_last:
            raise ValueError(
                f"performance.channels_last=true needs encoder.width 8 or more, got {self.encoder.width}; "
                "set performance.channels_last=auto"
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
                raise RefusedError(f"{name}.target=stored needs {what}; set {name}.target=average")
            if getattr(section, "images", None) == "old":
                raise RefusedError(f"{name}.images=old needs {what}; set {name}.images=all")
