"""A section for each part that has options, by the part's name in the catalogue."""

from typing import Annotated, Literal

from pydantic import Field, create_model, field_validator, model_validator

from ccl.byte_sizes import num_bytes
from ccl.catalogue import RETENTION, SELECTIONS
from ccl.settings.inputs import TopSettings
from ccl.settings.section import Count, CountOrZero, Positive, Section, Share, Weight, known


class MoCoSettings(Section):
    """MoCo v2."""

    queue_size: Count = 4096  # keys that are negatives
    key_momentum: Share = 0.99  # of the key encoder, per update
    final_key_momentum: Share | None = None  # at the end of each step, by a cosine; None: the same; MoCoV2+: 0.999
    mask_same_image: bool = False  # leave an image's own earlier keys out of its negatives
    symmetric: bool = False  # MoCoV2+: both views are queries, each against a queue of the other's keys


class BYOLSettings(Section):
    """BYOL."""

    predictor_width: Count = 1024  # of the hidden layer; BYOL: 4096
    momentum: Share = 0.99  # of the target in a step's first update
    final_momentum: Share = 1.0  # and in its last, by a cosine; lightly's recipe for small machines: 0.99


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


class MAESettings(Section):
    """MAE."""

    masked: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.75  # the share of an image's patches that is not shown
    decoder_width: Count = 128  # channels of its tokens; MAE: 512
    decoder_depth: Count = 2  # blocks; MAE: 8
    decoder_heads: Count = 4  # of its attention; MAE: 16

    @model_validator(mode="after")
    def _equal_heads(self) -> "MAESettings":
        if self.decoder_width % self.decoder_heads:
            nearest = max(round(self.decoder_width / self.decoder_heads), 1) * self.decoder_heads
            raise ValueError(
                f"mae.decoder_width {self.decoder_width} can't be split in {self.decoder_heads} mae.decoder_heads; "
                f"nearest valid value: {nearest}"
            )
        return self


class MemorySettings(Section):
    """What is kept of each step."""

    per_cluster: CountOrZero = 20  # of each step, so the memory grows with the stream
    clusters: Count | Literal["estimate"] | None = None  # None: the number of classes in the step (docs/memory.md)
    # At most so many images ("300") or bytes of their files ("50MB") in all, each step an equal share; None: no limit.
    # A share is filled in turns over the clusters: per_cluster then says nothing.
    budget: Count | str | None = None
    selection: str | None = None  # a row of `ccl methods`; None: the strategy's own
    num_views: Annotated[int, Field(ge=2)] = 6  # over which an image's variance is taken

    @field_validator("selection")
    @classmethod
    def _known_selection(cls, value: str | None) -> str | None:
        return None if value is None else known("selection", value, SELECTIONS)

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
    # Over steps: it stays as it is, begins anew with random weights, or begins anew as the identity, by a shortcut
    predictor: Literal["keep", "restart", "identity"] = "keep"
    relative: bool = False  # times the images of earlier steps for each new one


class PNRSettings(Section):
    """Past negatives."""

    queue_size: Count = 4096  # of the frozen copy's keys, where the objective has a queue or bank too; authors': 65536
    hidden: Count = 512  # authors' code: 2048


class CrossTaskSettings(Section):
    """Cross-task contrast on a second head."""

    past: Literal["replay", "distillation"] = "replay"  # Osiris-R, Osiris-D


class FurtherViewsSettings(Section):
    """Further views of old images."""

    count: Count = 1  # of an old image, beside those that the objective sees
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # of each batch's old images


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


class PartSettings(TopSettings):
    """One field for each section above: the next fields of `Settings`."""

    moco_v2: MoCoSettings = MoCoSettings()
    byol: BYOLSettings = BYOLSettings()
    simsiam: SimSiamSettings = SimSiamSettings()
    barlow_twins: BarlowTwinsSettings = BarlowTwinsSettings()
    vicreg: VICRegSettings = VICRegSettings()
    mae: MAESettings = MAESettings()
    memory: MemorySettings = MemorySettings()
    distillation: DistillationSettings = DistillationSettings()
    extra_sample_queue: QueueSettings = QueueSettings()
    share: ShareSettings = ShareSettings()
    lump: LumpSettings = LumpSettings()
    predictive_distillation: PredictiveSettings = PredictiveSettings()
    pnr: PNRSettings = PNRSettings()
    cross_task: CrossTaskSettings = CrossTaskSettings()
    further_views: FurtherViewsSettings = FurtherViewsSettings()
    alignment: AlignmentSettings = AlignmentSettings()
    merge: MergeSettings = MergeSettings()
    average: AverageSettings = AverageSettings()
    weights: WeightSettings = WeightSettings()
