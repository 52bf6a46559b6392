"""The past loss of Osiris-D: a view finds its own embedding by the previous backbone, and back."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.losses.cross_info_nce import symmetric_cross_entropy


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
    """
    # Differs: the authors' teacher is the present head on frozen features, and the head is trained through it as well;
    # `detach_teacher=False` does that.
    student = F.normalize(torch.cat([student_first, student_second]).float(), dim=1)  # (2N, D)
    teacher = F.normalize(torch.cat([teacher_first, teacher_second]).float(), dim=1)  # (2N, D)
    logits = student @ (teacher.detach() if detach_teacher else teacher).T / temperature  # (2N, 2N)
    other_view = torch.eye(len(logits), dtype=torch.bool, device=logits.device).roll(len(student_first), 0)
    return symmetric_cross_entropy(logits.masked_fill(other_view, float("-inf")))
