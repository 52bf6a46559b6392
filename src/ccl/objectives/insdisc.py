"""InsDisc: every image is a class of its own, with its row of an instance bank as class weight."""

import torch
from torch import Tensor

from ccl import ranks
from ccl.encoders import Embedded, Encoder
from ccl.losses import instance_nce, instance_softmax
from ccl.memory import InstanceBank
from ccl.part import BatchContext, Contrast, Objective
from ccl.seeding import generator
from ccl.views import ViewBatch


class InsDisc(Objective):
    """The bank covers the current step's images and the rehearsal memory; rows of remembered images stay.

    `num_noise` None takes the exact softmax over the bank, a number its noise-contrastive estimate. `proximal` weighs
    the pull ‖f(x) − v‖² of an embedding to its bank row (InsDisc: eq. 9).
    """

    num_views = 1
    num_student_views = 1
    normaliser: Tensor  # (): the constant Z of the noise-contrastive estimate, 0 = not yet estimated

    def __init__(
        self,
        dim: int,
        *,
        temperature: float,
        bank_momentum: float = 0.5,
        num_noise: int | None = None,
        proximal: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.num_noise = num_noise
        self.proximal = proximal
        self.seed = seed
        self.bank = InstanceBank(dim, bank_momentum, seed)
        self.register_buffer("normaliser", torch.tensor(0.0, dtype=torch.float64))

    def begin_step(self, encoder: Encoder, step: int, ids: Tensor) -> None:
        self.bank.hold(ids, step)
        self.normaliser.zero_()  # another bank has another constant

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        query = student[0].unit  # (N, D)
        rows = self.bank.rows(batch.ids)  # (N,)
        own = self.bank.vectors[rows]  # (N, D)
        negatives: tuple[Tensor, ...] = ()
        ignore: tuple[Tensor, ...] = ()
        if self.num_noise is None:
            loss = instance_softmax(query, self.bank.vectors, rows, self.temperature)
            negatives = (self.bank.vectors,)
            ignore = (torch.arange(len(self.bank), device=rows.device) == rows[:, None],)  # (N, n)
        else:
            loss = self._estimated(query, own, batch.all_ids, moment, self.num_noise)
        if self.proximal:
            loss = loss + self.proximal * (query - own).square().sum(dim=1).mean()
        return Contrast(loss, query, ((query, own),), query.detach(), negatives, ignore)

    def _estimated(self, query: Tensor, own: Tensor, ids: Tensor, moment: tuple[int, int], num_noise: int) -> Tensor:
        draw = generator(self.seed, "noise", *moment, int(ids[0]))  # the first image names the batch
        noise_rows = torch.randint(len(self.bank), (ranks.size() * len(query), num_noise), generator=draw)
        noise = self.bank.vectors[ranks.share(noise_rows).to(own.device)]  # (N, M, D)
        if self.normaliser == 0:
            # InsDisc: eq. 8, Z from the first batch, constant afterwards.
            similarity = (noise.double() @ query.detach().double().unsqueeze(2)).squeeze(2)  # (N, M)
            mean = (similarity / self.temperature).exp().mean()
            ranks.average([mean])
            self.normaliser.fill_(float(len(self.bank) * mean))
        return instance_nce(query, own, noise, self.temperature, float(self.normaliser), len(self.bank))

    def after_update(self, encoder: Encoder, context: BatchContext) -> None:
        self.bank.update(self.bank.rows(context.batch.all_ids), context.all_keys)
