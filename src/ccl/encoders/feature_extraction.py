"""Read a frozen network: one pass over a source, one row of features or embeddings per image."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from ccl import ranks
from ccl.data.sources import ImageSource
from ccl.encoders.encoder import Encoder
from ccl.views import Viewer

Output = Literal["features", "embeddings"]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside; afterwards every submodule is in the mode it came in, also on errors."""
    modes = [(part, part.training) for part in module.modules()]
    # Flags, not .eval() and .train(): a part that owns its mode (a teacher) must come back as it was.
    try:
        for part, _ in modes:
            part.training = False
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def extract(
    module: Encoder, source: ImageSource, viewer: Viewer, batch_size: int = 512, output: Output = "features"
) -> Tensor:
    """Rows (N, F) or (N, D) in the source's order, float32 on the CPU; the source may not be empty.

    Each rank reads its share, and all get all rows.
    """
    if output not in ("features", "embeddings"):
        raise ValueError(f'output must be "features" or "embeddings", got {output!r}')
    return _read(module, module.features if output == "features" else module, source, viewer, batch_size)


def extract_both(module: Encoder, source: ImageSource, viewer: Viewer, batch_size: int = 512) -> tuple[Tensor, Tensor]:
    """Features (N, F) and embeddings (N, D) as `extract` gives them, from one forward of each image."""
    num_features = 0

    def side_by_side(images: Tensor) -> Tensor:
        nonlocal num_features
        embedded = module.embed(images)
        num_features = embedded.features.shape[1]
        return torch.cat([embedded.features.float(), embedded.unit.float()], dim=1)  # (n, F+D)

    rows = _read(module, side_by_side, source, viewer, batch_size)
    return rows[:, :num_features].contiguous(), rows[:, num_features:].contiguous()


def _read(
    module: Encoder, read: Callable[[Tensor], Tensor], source: ImageSource, viewer: Viewer, batch_size: int
) -> Tensor:
    if not len(source):
        raise ValueError("there are no images to extract features from")
    mine = ranks.share(torch.arange(len(source)))
    is_shared = 1 < ranks.size() <= len(source)  # fewer images than ranks: everyone reads them all
    with evaluating(module):
        batches = viewer.plain_batches(source.subset(mine) if is_shared else source, batch_size)
        rows = torch.cat([read(images).float() for images in batches])
    return (ranks.gather(rows, torch.ones(len(source), dtype=torch.bool)) if is_shared else rows).cpu()  # (N, …)
