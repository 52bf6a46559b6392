"""Self-supervised distillation from a momentum teacher, on the old images of a batch."""

import torch
from torch import Tensor

from ccl.encoders import Encoder, MomentumEncoder
from ccl.losses import similarity_distillation
from ccl.part import BatchContext, Retention
from ccl.retention.past import choose
from ccl.section import Fraction, Positive, Section


class TeacherDistillation(Retention):
    """The teacher is the student as it was when the step began, and follows it once an epoch. Paper: eqs. 3 and 4."""

    # Differs: the authors' code has augmented views in the rows of the similarity matrix, and embeds the whole batch's
    # plain images in a forward of their own.
    embeds_plain = True

    class Options(Section):
        momentum: Fraction = 0.996  # of the teacher, per epoch
        student_temperature: Positive | None = None  # None: the objective's; authors' code: 0.07
        teacher_temperature: Positive | None = None  # None: the student's; authors' code: 0.04

    def __init__(self, encoder: Encoder, options: Options = Options(), *, temperature: float) -> None:
        super().__init__()
        self.student_temperature = options.student_temperature or temperature
        self.teacher_temperature = options.teacher_temperature or self.student_temperature
        self.teacher = MomentumEncoder(encoder, options.momentum)

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        self.teacher.reset(encoder)

    def loss(self, context: BatchContext) -> Tensor | None:
        chosen = choose(context, "old")  # the similarities of one image to itself alone are always 1
        if chosen is None:
            return None
        old_views = context.batch.views[0][chosen.rows]  # (M, 3, S, S)
        taught_plain, taught_view = self.teacher(torch.cat([context.batch.plain, old_views])).chunk(2)  # (M, D) each
        student_view = context.contrast.query[chosen.rows]  # (M, D): already computed for the contrast
        # Similarities are those of the whole batch's old images: each rank computes the loss of all of them.
        plain, view, then_plain, then_view = chosen.everywhere(
            context.student_plain.unit, student_view, taught_plain, taught_view
        )  # (M of all ranks, D) each
        return similarity_distillation(
            plain, view, then_plain, then_view, self.student_temperature, self.teacher_temperature
        )

    def end_epoch(self, encoder: Encoder) -> None:
        self.teacher.follow(encoder)
