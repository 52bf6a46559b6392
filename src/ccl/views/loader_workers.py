"""The loader workers' part: decode a picture once, as large as the views need it, and cut every crop."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ccl.data.decoding import BadImageError
from ccl.data.image_sources import ImageSource
from ccl.views.random_draws import NUM_BOX_DRAWS, ViewKey, drawn_boxes
from ccl.views.recipes import Recipe
from ccl.views.worker_pool import WorkerPool

Crops = list[Tensor]  # uint8 (M, 3, S, S) for each view that is asked for, of the M pictures chosen for it
_DIVISORS = (8, 4, 2)  # what JPEG decoders offer; crops of photographs then differ by a grey level of 255 on average


class LostImageError(OSError):
    """An image that was sound when the data was loaded can't be read any more."""


@dataclass(frozen=True)
class AskedView:
    """A view to make of a batch of images, or of some of them."""

    key: ViewKey | None  # None: the plain image
    chosen: Tensor | None  # (N,) bool: of which images; None: of all

    def of(self, rows: Tensor) -> Tensor:
        """The rows of the chosen images."""
        return rows if self.chosen is None else rows[self.chosen.to(rows.device)]

    def uniforms(self, ids: Tensor, turns: Tensor) -> Tensor | None:
        """The draws of the chosen of these images; None for plain ones."""
        return None if self.key is None else self.key.uniforms(self.of(ids), self.of(turns))

    def counts(self, sizes: list[int]) -> list[int]:
        """The numbers of chosen images in consecutive batches of these sizes."""
        return sizes if self.chosen is None else [int(part.sum()) for part in torch.split(self.chosen, sizes)]


@dataclass(frozen=True)
class Task:
    """One batch to cut, with all that a worker must know: it holds no source, so it can serve every one."""

    pictures: ImageSource  # N images, those of the batch and no other
    turns: Tensor  # (N,)
    asked: Sequence[AskedView]  # the plain one is the last


def cut_pictures(recipe: Recipe, task: Task) -> Crops:
    """The crops of a task's pictures, not yet flipped or coloured."""
    num = len(task.turns)
    draws = [one.key.uniforms(task.pictures.ids, task.turns, NUM_BOX_DRAWS) for one in task.asked if one.key]
    uniforms = torch.stack(draws, 1) if draws else torch.empty(num, 0, NUM_BOX_DRAWS)  # (N, V, K)
    everyone = torch.ones(num, dtype=torch.bool)
    masks = [everyone if one.chosen is None else one.chosen for one in task.asked]  # (N,) each
    crops: list[list[Tensor]] = [[] for _ in task.asked]
    for position in range(num):
        wanted = [number for number, mask in enumerate(masks) if mask[position]]
        if not wanted:
            continue
        views = [number for number in wanted if number < len(draws)]
        cut = Cutting(recipe, uniforms[position, views], len(views) < len(wanted))
        for number, pixels in zip(wanted, cut.cut(task.pictures, position), strict=True):
            crops[number].append(pixels)
    none = torch.empty(0, 3, recipe.size, recipe.size, dtype=torch.uint8)
    return [torch.stack(view) if view else none for view in crops]


@dataclass
class Cutting:
    """The crops of one picture: their boxes are drawn when its header is read, before it is decoded."""

    recipe: Recipe
    uniforms: Tensor  # (V, K)
    wants_plain: bool
    full_size: tuple[int, int] = (0, 0)  # (W, H)
    boxes: list[list[float]] = field(default_factory=list)  # in pixels of the full picture
    divisor: int = 1

    def reduction(self, width: int, height: int) -> int:
        """The largest divisor that leaves every box at least as large as the view, so that none loses detail."""
        self._draw(width, height)
        spare = min(min(box[2:]) for box in self.boxes) / self.recipe.size
        self.divisor = next((divisor for divisor in _DIVISORS if divisor <= spare), 1)
        return self.divisor

    def cut(self, source: ImageSource, position: int) -> list[Tensor]:
        """uint8 (3, S, S) of each view, then of the plain image if it is wanted."""
        picture = source.picture(position, self.reduction)
        if not self.boxes:  # the source had no use for a reduction
            self._draw(*picture.size)
        # By the picture: one that takes too much memory is decoded smaller than was asked for.
        asked = (
            divisor for divisor in (1, self.divisor, *_DIVISORS) if _divided(self.full_size, divisor) == picture.size
        )
        divisor = next(asked, self.divisor)
        return [_cut(picture, [side / divisor for side in box], self.recipe.size) for box in self.boxes]

    def _draw(self, width: int, height: int) -> None:
        self.full_size = width, height
        num_views = len(self.uniforms)
        heights, widths = torch.full((num_views,), height), torch.full((num_views,), width)
        self.boxes = drawn_boxes(self.recipe, heights, widths, self.uniforms).tolist() if num_views else []
        if self.wants_plain:
            self.boxes += drawn_boxes(self.recipe, torch.tensor([height]), torch.tensor([width]), None).tolist()


def _divided(size: tuple[int, int], divisor: int) -> tuple[int, int]:
    return -(-size[0] // divisor), -(-size[1] // divisor)


def _cut(picture: Image.Image, box: Sequence[float], size: int) -> Tensor:
    """A box (left, top, width, height) of a picture as uint8 (3, S, S)."""
    left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]
    outer = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)
    # Cut first: with resize(box=…) alone the filter would reach over the border of the box, and not in `crop_resize`.
    inner = left - outer[0], top - outer[1], right - outer[0], bottom - outer[1]
    cut = picture.crop(outer).resize((size, size), Image.Resampling.BILINEAR, box=inner)
    return torch.from_numpy(np.array(cut)).permute(2, 0, 1)


class Workers:
    """Processes that cut batches ahead of time; they stay from one epoch, step or probe to the next."""

    def __init__(self, recipe: Recipe, num_workers: int, pin_memory: bool) -> None:
        self.recipe, self.num_workers, self.pin_memory = recipe, num_workers, pin_memory
        self._pool: WorkerPool[Task, Crops] | None = None
        self._is_busy = False

    def cut(self, tasks: Iterable[Task]) -> Iterator[Crops]:
        """The crops of each task, in order; tasks are asked for a few ahead."""
        if self._is_busy:  # someone reads while another is half-way
            yield from Workers(self.recipe, self.num_workers, self.pin_memory).cut(tasks)
            return
        self._is_busy = True
        try:
            for crops in self._answers(tasks):
                yield [view.pin_memory() for view in crops] if self.pin_memory else crops
        except BadImageError as error:
            raise LostImageError(f"{error}; put it back as it was, and the same command resumes") from error
        finally:
            self._is_busy = False

    def _answers(self, tasks: Iterable[Task]) -> Iterator[Crops]:
        work = partial(cut_pictures, self.recipe)
        if self.num_workers == 0:
            return map(work, tasks)
        if self._pool is None or not self._pool.is_open:
            self._pool = WorkerPool(work, self.num_workers)
        return self._pool.map(tasks)

    def close(self) -> None:
        """End the worker processes; a later batch starts new ones."""
        if self._pool is not None:
            self._pool.close()
