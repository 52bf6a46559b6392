"""Losses against the past: what a teacher or an earlier network makes of the batch, and old images against new ones."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.losses.contrastive import info_nce


def similarity_distillation(
    student_plain: Tensor,
    student_view: Tensor,
    teacher_plain: Tensor,
    teacher_view: Tensor,
    temperature: float,
    teacher_temperature: float | None = None,
) -> Tensor:
    """Cross-entropy of the student's similarity rows to the teacher's; mean over rows. Paper: eq. 3.

    All are unit rows (B, D) of the same B old images. Row i of P compares plain image i with every augmented view.
    No gradient reaches the teacher. Differs: eq. 3 sums over rows; the mean keeps the weight free of the batch's size.

    >>> rows = torch.eye(2)  # student and teacher agree: the loss is the entropy of the teacher's rows
    >>> round(ccl.losses.similarity_distillation(rows, rows, rows, rows, temperature=1.0).item(), 4)
    0.5822
    """
    student = student_plain.float() @ student_view.float().T / temperature  # (B, B)
    teacher = teacher_plain.float() @ teacher_view.float().T / (teacher_temperature or temperature)  # (B, B)
    target = F.softmax(teacher.detach(), dim=1)
    return -(target * F.log_softmax(student, dim=1)).sum(dim=1).mean()


def cross_info_nce(predicted: Tensor, target: Tensor, temperature: float) -> Tensor:
    """InfoNCE from predictions to targets and back; mean of both. CaSSLe: DonkeyShot21/cassle (arXiv 2112.04215).

    Row n of `predicted` belongs to row n of `target`, both (M, D) of any norm. CaSSLe stacks the two views, M = 2N, and
    the other view of the same image is a negative. No gradient reaches the target.
    """
    predicted, target = F.normalize(predicted.float(), dim=1), F.normalize(target.detach().float(), dim=1)  # (M, D)
    return _symmetric_cross_entropy(predicted @ target.T / temperature)  # (M, M)


def _symmetric_cross_entropy(logits: Tensor) -> Tensor:
    """Cross-entropy of a square matrix to the identity; mean over its rows and its columns."""
    own = torch.arange(len(logits), device=logits.device)  # (M,)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2.0


def osiris_distillation(
    student_first: Tensor,
    student_second: Tensor,
    teacher_first: Tensor,
    teacher_second: Tensor,
    temperature: float,
    detach_teacher: bool = True,
) -> Tensor:
    """InfoNCE from student views to the teacher's and back; mean of both. Osiris-D: arXiv 2404.19132.

    Two views (N, D) each, of any norm. A view's positive is the same view; its negatives are the views of other images.
    The authors train the head through the teacher's side too: `detach_teacher=False`.
    """
    student = F.normalize(torch.cat([student_first, student_second]).float(), dim=1)  # (2N, D)
    teacher = F.normalize(torch.cat([teacher_first, teacher_second]).float(), dim=1)  # (2N, D)
    logits = student @ (teacher.detach() if detach_teacher else teacher).T / temperature  # (2N, 2N)
    other_view = torch.eye(len(logits), dtype=torch.bool, device=logits.device).roll(len(student_first), 0)
    return _symmetric_cross_entropy(logits.masked_fill(other_view, float("-inf")))


def pnr_nt_xent(
    first: Tensor,
    second: Tensor,
    predicted_first: Tensor,
    predicted_second: Tensor,
    old_first: Tensor,
    old_second: Tensor,
    temperature: float,
) -> Tensor:
    """NT-Xent with past negatives plus a distillation with present ones, means over 2N views. PNR: csm9493/PNR.

    Two views (N, D) each, of any norm: present projections, what a predictor makes of them, and the frozen network's
    projections, which no gradient reaches. It replaces `nt_xent`.
    """
    present = F.normalize(torch.cat([first, second]).float(), dim=1)  # (2N, D)
    predicted = F.normalize(torch.cat([predicted_first, predicted_second]).float(), dim=1)  # (2N, D)
    old = F.normalize(torch.cat([old_first, old_second]).detach().float(), dim=1)  # (2N, D)
    candidates = torch.cat([present, old])  # (4N, D)
    itself = torch.eye(len(present), dtype=torch.bool, device=present.device).repeat(1, 2)  # (2N, 4N)
    partner = torch.arange(len(present), device=present.device).roll(len(first))  # (2N,): n <-> n + N
    contrast = F.cross_entropy((present @ candidates.T / temperature).masked_fill(itself, float("-inf")), partner)
    # As the authors' code: the positive, a view's own past embedding, is masked out of the denominator too, so that
    # this term has no lower limit at 0.
    others = (predicted @ candidates.T / temperature).masked_fill(itself, float("-inf")).logsumexp(dim=1)  # (2N,)
    own = (predicted * old).sum(dim=1) / temperature  # (2N,)
    return contrast + (others - own).mean()


def cross_task_contrast(
    new_first: Tensor, new_second: Tensor, old_first: Tensor, old_second: Tensor, temperature: float
) -> Tensor:
    """InfoNCE of new views against old ones and of old views against new ones; mean of both. Osiris: arXiv 2404.19132.

    Two views of N new and M old images, (N, D) and (M, D) of any norm, N and M at least 1; all of them are trained. A
    view's positive is its partner; its negatives are all views of the other side.
    """
    new = F.normalize(torch.cat([new_first, new_second]).float(), dim=1)  # (2N, D)
    old = F.normalize(torch.cat([old_first, old_second]).float(), dim=1)  # (2M, D)
    new_partner, old_partner = new.roll(len(new_first), 0), old.roll(len(old_first), 0)
    return (info_nce(new, new_partner, old, temperature) + info_nce(old, old_partner, new, temperature)) / 2.0
