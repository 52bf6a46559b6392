"""InsDisc: every image is a class of its own, with its row of an instance bank as class weight."""

import torch
from torch import Tensor

from ccl.encoders import Embedded, Encoder
from ccl.losses import instance_softmax
from ccl.memory import InstanceBank
from ccl.part import BatchContext, Contrast, Objective
from ccl.views import ViewBatch


class InsDisc(Objective):
    """The exact softmax over a bank of the current step's images and the memory; rows of remembered images stay."""

    num_views = 1
    num_student_views = 1

    def __init__(self, dim: int, *, temperature: float, seed: int = 0) -> None:
        super().__init__()
        self.temperature = temperature
        self.bank = InstanceBank(dim, seed=seed)
        self.register_buffer("normaliser", torch.tensor(0.0, dtype=torch.float64))  # in checkpoints of format 1; unused

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        self.bank.hold(ids, step)

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        query = student[0].unit  # (N, D)
        rows = self.bank.rows(batch.ids)  # (N,)
        own = self.bank.vectors[rows]  # (N, D)
        loss = instance_softmax(query, self.bank.vectors, rows, self.temperature)
        is_own = torch.arange(len(self.bank), device=rows.device) == rows[:, None]  # (N, n)
        return Contrast(loss, query, ((query, own),), query.detach(), negatives=(self.bank.vectors,), ignore=(is_own,))

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        self.bank.update(self.bank.rows(context.batch.all_ids), context.all_keys)
