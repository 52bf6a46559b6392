"""A batch as the learner shows it to parts, and rows as plain numbers."""

from typing import Any

import numpy as np
import torch
from networks import make_encoder
from numpy.typing import NDArray
from torch import Tensor

from ccl.encoders import Embedded, Encoder
from ccl.part import BatchContext, Contrast
from ccl.views import ViewBatch

Rows = NDArray[np.float64]
NOTHING = torch.zeros(0)


def images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def seen_by(encoder: Encoder, is_old: list[bool], num_views: int = 2, **more: Any) -> BatchContext:
    """A batch of two views as the learner shows it to parts."""
    old, views = torch.tensor(is_old), (images(len(is_old), 1), images(len(is_old), 2))
    student = tuple(encoder.embed(view) for view in views[:num_views])
    query, keys = student[0].unit, encoder(views[1]).detach()
    contrast = Contrast(torch.zeros(()), query, ((query, keys),), keys, **more.pop("contrast", {}))
    batch = ViewBatch(torch.arange(len(old)), 50 + torch.arange(len(old)), views, NOTHING, has_further=old)
    more.setdefault("num_further_of_all", int(old.sum()))
    nothing = student[0].rows(slice(0))
    return BatchContext(
        batch=batch, is_old=old, moment=(1, 0), student=student, contrast=contrast, student_plain=nothing, **more
    )


def seen_with(contrast: Contrast, batch: ViewBatch, done: float = 0.0) -> BatchContext:
    """A batch of the first step, and what the objective made of it."""
    rows = contrast.query[:0]
    nothing, none = Embedded(rows, rows, rows), torch.zeros(len(batch.ids), dtype=torch.bool)
    return BatchContext(
        batch=batch,
        is_old=none,
        has_old_images=False,
        moment=(0, 0),
        done=done,
        contrast=contrast,
        student_plain=nothing,
    )


def encoders() -> tuple[Encoder, Encoder]:
    """The student, and another one as the past."""
    return make_encoder("convnet", width=4, dim=8), make_encoder("convnet", width=4, dim=8, seed=1)


def value(loss: Tensor | None) -> float:
    return float(loss.detach())


def plain(rows: Tensor) -> Rows:
    return rows.detach().double().numpy()


def cosine(first: Rows, second: Rows) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
