"""New and old images are pushed apart on a head of its own, and the past is kept there. Osiris."""

import copy
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl import ranks
from ccl.encoders import Encoder, MomentumEncoder
from ccl.losses import cross_task_contrast, nt_xent, osiris_distillation
from ccl.part import BatchContext, Retention
from ccl.section import Section


class CrossTask(Retention):
    """L_cross + L_past on a second head, copied from the encoder's when step 2 begins. CoLLAs 2024 (arXiv 2404.19132).

    L_cross contrasts new with old images and old with new; L_past is "replay", the contrast of old images among
    themselves (Osiris-R), or "distillation" of new images from the frozen previous backbone (Osiris-D).
    """

    # Differs: the authors' objective sees new images only; here it learns from all of a batch, as everywhere. Their
    # memory is a reservoir that takes in images of the step itself; here it is of earlier steps. Their network has no
    # batch norm; a head that has some normalises each view by its own statistics here.
    num_student_views = 2

    class Options(Section):
        past: Literal["replay", "distillation"] = "replay"  # Osiris-R, Osiris-D

    def __init__(self, encoder: Encoder, options: Options = Options(), *, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.head = copy.deepcopy(encoder.head)
        self.frozen = MomentumEncoder(encoder, momentum=1.0) if options.past == "distillation" else None

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        if step == 1:
            self.head.load_state_dict(encoder.head.state_dict())
        if self.frozen is not None:
            self.frozen.reset(encoder)

    def loss(self, context: BatchContext) -> Tensor | None:
        is_old = context.all_old  # (N of all ranks,)
        new, old = (mask.nonzero().flatten().to(context.contrast.query.device) for mask in (~is_old, is_old))
        views = [view.features for view in context.student]
        if self.frozen is not None and len(new):
            views += self.frozen.embed(torch.cat(context.batch.views[:2])).features.chunk(2)
        everyone = ranks.gather_together([F.normalize(self.head(features), dim=1) for features in views])
        present, past = everyone[:2], everyone[2:]  # (N of all ranks, D) each
        losses = []
        if len(new) and len(old):
            losses.append(cross_task_contrast(*_of(new, present), *_of(old, present), self.temperature))
        if past:
            # As the authors do: the present head reads the frozen backbone's features and learns through both sides.
            losses.append(
                osiris_distillation(*_of(new, present), *_of(new, past), self.temperature, detach_teacher=False)
            )
        if self.frozen is None and len(old):
            losses.append(nt_xent(*_of(old, present), self.temperature))
        return torch.stack(losses).sum() if losses else None


def _of(rows: Tensor, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Both views of some images."""
    return views[0][rows], views[1][rows]
