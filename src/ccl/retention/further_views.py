"""Further views of old images, which the student embeds as further queries."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from ccl import ranks
from ccl.losses import info_nce
from ccl.part import BatchContext, Retention
from ccl.section import Count, Section


class FurtherViews(Retention):
    """InfoNCE of further views of the old images, against what the objective compares the first view with."""

    class Options(Section):
        count: Count = 1  # of an old image, beside those that the objective sees
        share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # of each batch's old images

    def __init__(self, options: Options = Options(), *, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.num_further_views = options.count
        self.share_with_further = options.share

    def loss(self, context: BatchContext) -> Tensor | None:
        if not context.num_further_of_all:
            return None
        rows = context.batch.rows_with_further.to(context.contrast.query.device)  # (F,)
        if not len(rows):
            return context.contrast.query.sum() * 0.0  # all ranks send the same terms
        _, targets = context.contrast.pairs[0]  # (N, D): a key, the other view or the bank's row
        negatives, ignore = _negatives(context, rows)
        positives = targets[rows].detach()  # (F, D)
        losses = [info_nce(view.unit, positives, negatives, self.temperature, ignore) for view in context.further]
        # The mean over ranks is then the mean over all of these images, however they lie.
        scale = ranks.size() * len(rows) / context.num_further_of_all
        return sum(losses[1:], losses[0]) * (scale / len(losses))


def _negatives(context: BatchContext, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """The objective's negatives (K, D), and where they are left out (F, K); SimCLR's are other images' keys."""
    contrast = context.contrast
    if contrast.negatives:
        return contrast.negatives[0], contrast.ignore[0][rows] if contrast.ignore else None
    own = context.batch.ids[rows.cpu()]  # (F,)
    return context.all_keys, (own[:, None] == context.batch.all_ids[None]).to(rows.device)
