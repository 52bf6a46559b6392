"""The loader workers' part: decode a picture once, as large as the views need it, and cut every crop."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ccl.data.decoding import BadImageError
from ccl.data.image_sources import ImageSource
from ccl.views.random_draws import NUM_BOX_DRAWS, ViewKey, drawn_boxes
from ccl.views.recipes import Recipe

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


@dataclass(frozen=True)
class PictureCrops(Dataset[Crops]):
    """Tasks in, the crops of their pictures out, not yet flipped or coloured."""

    recipe: Recipe

    def __getitem__(self, task: Task) -> Crops:
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
            cut = Cutting(self.recipe, uniforms[position, views], len(views) < len(wanted))
            for number, pixels in zip(wanted, cut.cut(task.pictures, position), strict=True):
                crops[number].append(pixels)
        none = torch.empty(0, 3, self.recipe.size, self.recipe.size, dtype=torch.uint8)
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
        divisor = 1 if picture.size == self.full_size else self.divisor
        return [_cut(picture, [side / divisor for side in box], self.recipe.size) for box in self.boxes]

    def _draw(self, width: int, height: int) -> None:
        self.full_size = width, height
        num_views = len(self.uniforms)
        heights, widths = torch.full((num_views,), height), torch.full((num_views,), width)
        self.boxes = drawn_boxes(self.recipe, heights, widths, self.uniforms).tolist() if num_views else []
        if self.wants_plain:
            self.boxes += drawn_boxes(self.recipe, torch.tensor([height]), torch.tensor([width]), None).tolist()


def _cut(picture: Image.Image, box: Sequence[float], size: int) -> Tensor:
    """A box (left, top, width, height) of a picture as uint8 (3, S, S)."""
    left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]
    outer = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)
    # Cut first: with resize(box=…) alone the filter would reach over the border of the box, and not in `crop_resize`.
    inner = left - outer[0], top - outer[1], right - outer[0], bottom - outer[1]
    cut = picture.crop(outer).resize((size, size), Image.Resampling.BILINEAR, box=inner)
    return torch.from_numpy(np.array(cut)).permute(2, 0, 1)


class _Tasks(Sampler[Task]):
    """What a loader is to do next; a loader asks for an order of indices, and hands out whatever it is given."""

    def __init__(self) -> None:
        self.tasks: Iterable[Task] = ()

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)


class Workers:
    """Processes that cut batches ahead of time; they stay from one epoch, step or probe to the next."""

    def __init__(self, recipe: Recipe, num_workers: int, pin_memory: bool) -> None:
        self.recipe, self.num_workers, self.pin_memory = recipe, num_workers, pin_memory
        self._tasks = _Tasks()
        self._loader: DataLoader[Crops] | None = None
        self._is_busy = False

    def cut(self, tasks: Iterable[Task]) -> Iterator[Crops]:
        """The crops of each task, in order; tasks are asked for a few ahead."""
        if self._is_busy:  # someone reads while another is half-way: a loader has one place only
            yield from Workers(self.recipe, self.num_workers, self.pin_memory).cut(tasks)
            return
        self._is_busy = True
        try:
            self._tasks.tasks = tasks
            if self._loader is None:
                self._loader = self._started()
            yield from self._loader
        except BadImageError as error:
            self._loader = None
            # That of a process comes with its traceback, whose last line is "module.BadImageError: PATH: reason".
            what = str(error).strip().splitlines()[-1].rpartition(f"{BadImageError.__name__}: ")[2]
            raise LostImageError(f"{what}; put it back as it was, and the same command resumes") from error
        finally:
            self._is_busy, self._tasks.tasks = False, ()

    def _started(self) -> DataLoader[Crops]:
        return DataLoader(
            PictureCrops(self.recipe),
            batch_size=None,
            sampler=cast(Sampler[int], self._tasks),
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=self.pin_memory,
            generator=torch.Generator(),  # its own, because a loader otherwise takes a number from torch's global one
        )

    def close(self) -> None:
        """End the worker processes; a later batch starts new ones."""
        self._loader = None
