"""The loader workers' part for images of any size: decode once, cut every crop from the full resolution."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ccl.data.sources import ImageSource
from ccl.views.crops import plain_boxes
from ccl.views.draws import Moment, draw_boxes
from ccl.views.recipes import Recipe

Crops = tuple[list[Tensor], Tensor]  # uint8 (N, 3, S, S) for each view, and (M, 3, S, S) of the plain images


@dataclass(frozen=True)
class PictureCrops(Dataset[Crops]):
    """One item is one whole batch: the crops of its pictures, not yet flipped or coloured."""

    source: ImageSource
    batches: Sequence[Tensor]  # positions of each batch
    recipe: Recipe
    moments: Sequence[Moment]  # one per view
    plain: Tensor  # (len(source),) bool

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Crops:
        positions = self.batches[number]
        crops: list[list[Tensor]] = [[] for _ in self.moments]
        plain = []
        for position in positions.tolist():
            wants_plain = bool(self.plain[position])
            if not self.moments and not wants_plain:
                continue
            picture = self.source.picture(position)
            height, width = torch.tensor([picture.height]), torch.tensor([picture.width])
            for view, moment in zip(crops, self.moments, strict=True):
                box = draw_boxes(self.recipe, self.source.ids[position : position + 1], height, width, moment)
                view.append(_cut(picture, box, self.recipe.size))
            if wants_plain:
                plain.append(_cut(picture, plain_boxes(self.recipe, height, width), self.recipe.size))
        return [self._stacked(view) for view in crops], self._stacked(plain)

    def _stacked(self, images: list[Tensor]) -> Tensor:
        size = self.recipe.size
        return torch.stack(images) if images else torch.empty(0, 3, size, size, dtype=torch.uint8)


def load(crops: PictureCrops, num_workers: int, pin_memory: bool) -> Iterator[Crops]:
    """The batches in order, made ahead by workers."""
    # Its own generator, because a loader otherwise takes a number from torch's global one.
    loader: DataLoader[Crops] = DataLoader(
        crops, batch_size=None, num_workers=num_workers, pin_memory=pin_memory, generator=torch.Generator()
    )
    return iter(loader)


def _cut(picture: Image.Image, box: Tensor, size: int) -> Tensor:
    """A box (1, 4) of a picture as uint8 (3, S, S)."""
    left, top, width, height = (int(value) for value in box[0])
    # Cut first: with resize(box=…) the filter would reach over the border of the box, here and not in `crop_resize`.
    cut = picture.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(cut)).permute(2, 0, 1)
