"""Base classes of a learner's parts, the hooks that the loop calls, and the batch that parts receive.

A part is a module: parameters it owns are trained, buffers are saved, both agree over ranks. Every hook is optional.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import Tensor, nn

from ccl import ranks
from ccl.encoders import Embedded, Encoder
from ccl.views import ViewBatch


@dataclass(frozen=True)
class Contrast:
    """An objective's answer to one batch of N images; embeddings are unit rows."""

    loss: Tensor  # ()
    query: Tensor  # (N, D): the student's embeddings of the first view, with gradient; (0, D): nobody asked for them
    pairs: tuple[tuple[Tensor, Tensor], ...]  # positive pairs (N, D), (N, D): extra negatives are contrasted with these
    keys: Tensor  # (N, D), detached: what a queue stores of this batch
    negatives: tuple[Tensor, ...] = ()  # for each pair (K, D): rows of the queue or bank its query was pushed from
    ignore: tuple[Tensor, ...] = ()  # for each of these (N, K): True where one was left out for a query; empty: nowhere
    all_keys: Tensor | None = None  # (N of all ranks, D): the keys of all ranks, where the objective has met them


@dataclass(frozen=True, kw_only=True)
class BatchContext:
    """One batch after the student has embedded it. N images, M of them old."""

    batch: ViewBatch  # with the old images without augmentation, if a part asked for them
    is_old: Tensor  # (N,) bool
    has_old_images: bool = True  # False in the first step, unless images of the past were given before it
    moment: tuple[int, int]  # (step, epoch), counted from 0
    done: float = 0.0  # the share of the step's updates that are made with this one
    student: tuple[Embedded, ...] = ()  # num_student_views of N rows
    contrast: Contrast
    student_plain: Embedded  # M rows: the student's embeddings of the old images without augmentation
    # (M of all ranks, ·) by kind: vectors kept beside the old images of all ranks
    stored: Mapping[str, Tensor] = field(default_factory=dict)
    old_of_all: Tensor | None = None  # (N of all ranks,) bool, where it is known
    past_per_new: float = 0.0  # images of all earlier steps for each of this step's; 0: there were none, or who knows
    further: tuple[Embedded, ...] = ()  # F rows each: the student's embeddings of further views of old images
    num_further_of_all: int = 0  # how many images of all ranks have them

    @property
    def all_old(self) -> Tensor:
        """Which images of all ranks are old, (N of all ranks,) bool."""
        return ranks.gather(self.is_old) if self.old_of_all is None else self.old_of_all

    @cached_property
    def all_keys(self) -> Tensor:
        """The keys of all ranks, (N of all ranks, D); gathered once, for all parts that store them."""
        known = self.contrast.all_keys
        return ranks.gather(self.contrast.keys) if known is None else known


class Part(nn.Module):
    """Base class of all parts; a subclass overrides the hooks it needs."""

    constant_rate: tuple[str, ...] = ()  # names of its modules that learn at the full rate, whatever the schedule

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        """Called when a step begins; `ids` are the images of D_t and of the rehearsal memory."""

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        """Called after an optimizer step: momentum copies follow, queues take their keys."""

    def end_epoch(self, encoder: Encoder) -> None:
        """Called at the end of an epoch."""

    def end_step(self, encoder: Encoder) -> None:
        """The training of a step has ended; what is done to the encoder here is what is selected with and probed."""


class Objective(Part, ABC):
    """Base class of objectives, which learn the present."""

    num_views = 2  # how many random views a batch brings
    # How many of them, the first ones, the student embeds. An objective that asks for none is given the first where a
    # part that keeps the past has asked for it.
    num_student_views = 2

    @abstractmethod
    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        """The loss of this batch, given the student and what it makes of whole views; moment is (step, epoch)."""


class WeightRule(Part):
    """Base class of rules that change the weights between updates or steps."""

    @property
    def moves_weights(self) -> bool:
        """Whether, when a step has ended, `product` has other weights than were trained in it.

        Its batch-norm statistics are then estimated anew.
        """
        return False

    def product(self, encoder: Encoder) -> Encoder:
        """The encoder that is selected with, probed and exported: the student itself, or a copy that the rule owns."""
        return encoder


class Retention(Part, ABC):
    """Base class of parts that keep the past."""

    embeds_plain = False  # whether the student must embed the old images without augmentation for it
    num_student_views = 1  # how many views the student must embed for it, where the objective asks for fewer
    num_further_views = 0  # how many more random views of old images the student must embed for it
    share_with_further = 1.0  # of how many of a batch's old images
    stores: frozenset[Literal["features", "embeddings"]] = frozenset()  # vectors the memory keeps beside its images

    @abstractmethod
    def loss(self, context: BatchContext) -> Tensor | None:
        """Its loss for this batch, or None where there is nothing to compute.

        Called from the second step on, and in the first where the encoder starts from weights that know something.
        """
