"""From positions in a source to finished views, batch by batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccl.data.sources import ImageSource
from ccl.views.crops import crop_resize, plain_boxes
from ccl.views.draws import Moment, draw_appearance, draw_boxes
from ccl.views.finish import finish, normalise_
from ccl.views.pictures import Crops, Task, Workers
from ccl.views.recipes import Recipe


@dataclass(frozen=True)
class ViewBatch:
    """The views of N images, normalised, on the viewer's device."""

    positions: Tensor  # (N,) in the source
    ids: Tensor  # (N,)
    views: tuple[Tensor, ...]  # num_views of (N, 3, S, S)
    plain: Tensor  # (M, 3, S, S): the images whose plain view was asked for, in the batch's order; M may be 0


class Viewer:
    """Shows images by a recipe; a view depends on (seed, moment, image id, view number) and on nothing else."""

    def __init__(self, recipe: Recipe, seed: int, device: torch.device | str = "cpu", num_workers: int = 0) -> None:
        if num_workers < 0:
            raise ValueError(f"num_workers must not be negative, got {num_workers}")
        self.recipe = recipe
        self.seed = seed
        self.device = torch.device(device)
        self.num_workers = num_workers  # for sources that are decoded picture by picture
        self._workers = Workers(recipe, num_workers, pin_memory=self.device.type == "cuda")

    def batches(
        self,
        source: ImageSource,
        batches: Sequence[Tensor],
        *,
        moment: tuple[int, ...] = (),
        num_views: int = 0,
        plain: Tensor | None = None,
    ) -> Iterator[ViewBatch]:
        """The views of each batch of positions, and plain images where the mask `plain` (len(source),) says."""
        mask = torch.zeros(len(source), dtype=torch.bool) if plain is None else plain.cpu()
        if mask.shape != (len(source),) or mask.dtype != torch.bool:
            raise ValueError(f"plain must be a bool mask over {len(source)} images, got {mask.dtype} {mask.shape}")
        batches = [positions.cpu() for positions in batches]
        moments = [Moment(self.seed, moment, view) for view in range(num_views)]
        if source.image_size is None:
            return self._from_pictures(source, batches, moments, mask)
        return self._from_arrays(source, batches, moments, mask)

    def plain_batches(self, source: ImageSource, batch_size: int) -> Iterator[Tensor]:
        """All images in order as plain views, (at most batch_size, 3, S, S)."""
        everything = torch.ones(len(source), dtype=torch.bool)
        starts = range(0, len(source), batch_size)
        batches = [torch.arange(start, min(start + batch_size, len(source))) for start in starts]
        for batch in self.batches(source, batches, plain=everything):
            yield batch.plain

    def _from_arrays(
        self, source: ImageSource, batches: Sequence[Tensor], moments: Sequence[Moment], plain: Tensor
    ) -> Iterator[ViewBatch]:
        for positions in batches:
            ids = source.ids[positions]
            with torch.no_grad():
                images = source.read(positions).to(self.device, non_blocking=True)  # uint8 (N, 3, H, W)
                views = tuple(self._view(images, ids, moment) for moment in moments)
                chosen = images[plain[positions].to(self.device)]  # (M, 3, H, W)
                plain_views = self._plain(chosen)
            yield ViewBatch(positions, ids, views, plain_views)

    def _view(self, images: Tensor, ids: Tensor, moment: Moment) -> Tensor:
        boxes = draw_boxes(self.recipe, ids, *_sizes(images), moment)
        appearance = draw_appearance(self.recipe, ids, moment)
        flip = appearance.is_flipped.to(self.device)
        return finish(crop_resize(images, boxes.to(self.device), flip, self.recipe.size), appearance, self.recipe)

    def _plain(self, images: Tensor) -> Tensor:
        boxes = plain_boxes(self.recipe, *_sizes(images)).to(self.device)
        no_flip = torch.zeros(len(images), dtype=torch.bool, device=self.device)
        return normalise_(crop_resize(images, boxes, no_flip, self.recipe.size), self.recipe)

    def _from_pictures(
        self, source: ImageSource, batches: Sequence[Tensor], moments: Sequence[Moment], plain: Tensor
    ) -> Iterator[ViewBatch]:
        tasks = (Task(source.subset(positions), moments, plain[positions]) for positions in batches)
        for positions, crops in zip(batches, self._workers.cut(tasks), strict=True):
            yield self._finished(positions, source.ids[positions], crops, moments)

    def _finished(self, positions: Tensor, ids: Tensor, crops: Crops, moments: Sequence[Moment]) -> ViewBatch:
        with torch.no_grad():
            views = []
            for pixels, moment in zip(crops[0], moments, strict=True):
                appearance = draw_appearance(self.recipe, ids, moment)
                unit = pixels.to(self.device, non_blocking=True).float().mul_(1 / 255)
                flipped = appearance.is_flipped.nonzero()[:, 0].to(self.device)
                unit.index_copy_(0, flipped, unit.index_select(0, flipped).flip(3))
                views.append(finish(unit, appearance, self.recipe))
            plain = normalise_(crops[1].to(self.device, non_blocking=True).float() * (1 / 255), self.recipe)
        return ViewBatch(positions, ids, tuple(views), plain)

    def close(self) -> None:
        """End the loader workers, which otherwise live as long as the viewer; a later batch would start new ones."""
        self._workers.close()


def _sizes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Heights and widths (N,), on the CPU where boxes are drawn."""
    count, _, height, width = images.shape
    return torch.full((count,), height), torch.full((count,), width)
