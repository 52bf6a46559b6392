"""Self-supervised distillation from a momentum teacher, on the old images of a batch."""

from typing import Literal, cast

import torch
from torch import Tensor

from ccl.encoders import Encoder, MomentumEncoder
from ccl.losses import similarity_distillation
from ccl.part import BatchContext, Retention
from ccl.retention.chosen_images import choose


class TeacherDistillation(Retention):
    """The teacher is the student as it was when the step began, and follows it once an epoch. Paper: eqs. 3 and 4.

    `rows` says which embeddings stand in the rows of the similarity matrix: those of the "plain" images (paper) or of
    the augmented "view" (authors' code). `plain_images` "old" embeds the old images of the batch in the student's one
    forward; "batch" embeds the whole batch in a forward of its own, as the authors' code does. Temperatures default to
    the objective's for the student and the student's for the teacher.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        temperature: float,
        momentum: float,
        student_temperature: float | None = None,
        teacher_temperature: float | None = None,
        rows: Literal["plain", "view"] = "plain",
        reduction: Literal["mean", "sum"] = "mean",
        plain_images: Literal["old", "batch"] = "old",
    ) -> None:
        super().__init__()
        self.student_temperature = student_temperature or temperature
        self.teacher_temperature = teacher_temperature or self.student_temperature
        self.rows = rows
        self.reduction = reduction
        self.plain_images = plain_images
        self.teacher = MomentumEncoder(encoder, momentum)

    def momentum_teacher(self) -> Encoder:
        return cast(Encoder, self.teacher.copy)

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        self.teacher.reset(encoder)

    def loss(self, context: BatchContext) -> Tensor | None:
        chosen = choose(context, "old")  # the similarities of one image to itself alone are always 1
        if chosen is None:
            return None
        old_views = context.batch.views[0][chosen.rows]  # (M, 3, S, S)
        taught_plain, taught_view = self.teacher(torch.cat([context.plain, old_views])).chunk(2)  # (M, D) each
        student_view = context.contrast.query[chosen.rows]  # (M, D): already computed for the contrast
        # Similarities are those of the whole batch's old images: each rank computes the loss of all of them.
        plain, view, then_plain, then_view = chosen.everywhere(
            context.student_plain.unit, student_view, taught_plain, taught_view
        )  # (M of all ranks, D) each
        student, taught = (plain, view), (then_plain, then_view)
        if self.rows == "view":
            student, taught = student[::-1], taught[::-1]
        loss = similarity_distillation(*student, *taught, self.student_temperature, self.teacher_temperature)
        return loss * chosen.num if self.reduction == "sum" else loss

    def end_epoch(self, encoder: Encoder) -> None:
        self.teacher.follow(encoder)
