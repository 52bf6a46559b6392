"""Self-supervised distillation: the student keeps the teacher's similarities among old images."""

import torch.nn.functional as F
from torch import Tensor


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
