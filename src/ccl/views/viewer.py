"""From positions in a source to finished views, batch by batch.

Small views cost by the call and not by the image, so views of several batches are made in one block. A view's bits
don't depend on what it is made with (`ccl.views.batched_matmul`), so a block changes nothing but the time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccl import ranks
from ccl.data.sources import ImageSource
from ccl.views.crops import crop_resize, plain_boxes
from ccl.views.finish_views import finish, normalise_
from ccl.views.loader_workers import Crops, Task, Workers
from ccl.views.random_draws import ViewKey, drawn_appearance, drawn_boxes
from ccl.views.recipes import Recipe

_BLOCK_BYTES = 2**23  # of finished views made at once, at least a batch of them; measured on a CPU
_WORKER_BLOCK_BYTES = 2**22  # of those that one task of a loader worker brings, so that the first ones come soon


_Batches = tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]  # positions, turns, who has further views


@dataclass(frozen=True)
class ViewBatch:
    """The views of N images, normalised, on the viewer's device."""

    positions: Tensor  # (N,) in the source
    ids: Tensor  # (N,)
    views: tuple[Tensor, ...]  # num_views of (N, 3, S, S)
    plain: Tensor  # (M, 3, S, S): the images whose plain view was asked for, in the batch's order; M may be 0
    everyone: tuple[Tensor, Tensor] | None = None  # positions and ids of all ranks' images, where they are known
    turns: Tensor | None = None  # (N,): how often each image was seen in this epoch before; None: not once
    further: tuple[Tensor, ...] = ()  # num_further of (F, 3, S, S): more views of the images chosen for them
    has_further: Tensor | None = None  # (N,) bool: which these are; None: none

    @property
    def rows_with_further(self) -> Tensor:
        """The numbers of the images that have further views, (F,)."""
        none = torch.zeros_like(self.positions, dtype=torch.bool)
        return (none if self.has_further is None else self.has_further).nonzero().flatten()

    @property
    def all_positions(self) -> Tensor:
        """Of the images of all ranks, (N of all ranks,)."""
        return ranks.gather(self.positions) if self.everyone is None else self.everyone[0]

    @property
    def all_ids(self) -> Tensor:
        """Of the images of all ranks, (N of all ranks,)."""
        return ranks.gather(self.ids) if self.everyone is None else self.everyone[1]


@dataclass(frozen=True)
class _Asked:
    """What is to be made: views of all images, then more views and plain ones of some."""

    keys: Sequence[ViewKey]  # of a random view each
    num_views: int  # how many of them, the first ones, are of all images
    plain: Tensor  # (len(source),) bool


@dataclass(frozen=True)
class _Block:
    """Some consecutive batches, whose views are made together."""

    positions: Tensor  # (N,) of all of them
    turns: Tensor  # (N,)
    has_further: Tensor  # (N,) bool
    sizes: list[int]  # of each

    def chosen(self, asked: _Asked) -> list[Tensor | None]:
        """Which of the images (N,) each view is made of; None: all."""
        return [None if number < asked.num_views else self.has_further for number in range(len(asked.keys))]

    def split(self, ids: Tensor, views: Sequence[Tensor], plain: Tensor, asked: _Asked) -> Iterator[ViewBatch]:
        """The batches again, of what was made of the block's images."""
        positions, of_turns, of_ids, of_further = (
            torch.split(rows, self.sizes) for rows in (self.positions, self.turns, ids, self.has_further)
        )
        of_plain = torch.split(plain, [int(asked.plain[rows].sum()) for rows in positions])
        chosen = [int(rows.sum()) for rows in of_further]
        of_views = [
            torch.split(view, self.sizes if number < asked.num_views else chosen) for number, view in enumerate(views)
        ]  # by view, then by batch
        for number, (rows, numbers, turns) in enumerate(zip(positions, of_ids, of_turns, strict=True)):
            shown = tuple(view[number] for view in of_views)
            whole, further = shown[: asked.num_views], shown[asked.num_views :]
            yield ViewBatch(rows, numbers, whole, of_plain[number], None, turns, further, of_further[number])


class Viewer:
    """Shows images by a recipe; a view depends on (seed, moment, image id, turn, view number) and on nothing else."""

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
        num_further: int = 0,
        further: Sequence[Tensor] | None = None,
        plain: Tensor | None = None,
        turns: Sequence[Tensor] | None = None,
    ) -> Iterator[ViewBatch]:
        """The views of each batch of positions, and plain images where the mask (len(source),) says.

        Of each batch the images of a mask (N,) have further views. An image may come twice: by another turn, one (N,)
        for each batch, it gets other views. None means turn 0, and no further views.
        """
        batches = [positions.cpu() for positions in batches]
        turns = _of_batches("turns", turns, batches)
        chosen = [rows.bool() for rows in _of_batches("further", further, batches)]
        keys = [ViewKey(self.seed, moment, view) for view in range(num_views + num_further)]
        asked = _Asked(keys, num_views, _mask("plain", plain, source))
        make = self._from_arrays if source.image_size is not None else self._from_pictures
        return make(source, (batches, turns, chosen), asked)

    def plain_batches(self, source: ImageSource, batch_size: int) -> Iterator[Tensor]:
        """All images in order as plain views, (at most batch_size, 3, S, S)."""
        everything = torch.ones(len(source), dtype=torch.bool)
        starts = range(0, len(source), batch_size)
        batches = [torch.arange(start, min(start + batch_size, len(source))) for start in starts]
        for batch in self.batches(source, batches, plain=everything):
            yield batch.plain

    def _from_arrays(self, source: ImageSource, batches: _Batches, asked: _Asked) -> Iterator[ViewBatch]:
        for block in _blocks(batches, _BLOCK_BYTES // self._bytes_of(len(asked.keys))):
            ids = source.ids[block.positions]
            with torch.no_grad():
                images = source.read(block.positions).to(self.device, non_blocking=True)  # uint8 (N, 3, H, W)
                views = []
                for key, rows in zip(asked.keys, block.chosen(asked), strict=True):
                    shown = images if rows is None else images[rows.to(self.device)]
                    views.append(self._view(shown, _uniforms(key, ids, block.turns, rows)))
                chosen = images[asked.plain[block.positions].to(self.device)]  # (M, 3, H, W)
                plain_views = self._plain(chosen)
            yield from block.split(ids, views, plain_views, asked)

    def _bytes_of(self, num_views: int) -> int:
        """What the views of one image take."""
        return 4 * 3 * self.recipe.size**2 * max(num_views, 1)

    def _view(self, images: Tensor, uniforms: Tensor) -> Tensor:
        boxes = drawn_boxes(self.recipe, *_sizes(images), uniforms).to(self.device)
        appearance = drawn_appearance(self.recipe, uniforms)
        flip = appearance.is_flipped.to(self.device)
        return finish(crop_resize(images, boxes, flip, self.recipe.size), appearance, self.recipe)

    def _plain(self, images: Tensor) -> Tensor:
        boxes = plain_boxes(self.recipe, *_sizes(images)).to(self.device)
        no_flip = torch.zeros(len(images), dtype=torch.bool, device=self.device)
        return normalise_(crop_resize(images, boxes, no_flip, self.recipe.size), self.recipe)

    def _from_pictures(self, source: ImageSource, batches: _Batches, asked: _Asked) -> Iterator[ViewBatch]:
        # Several blocks for each worker, however few images there are.
        fair = sum(map(len, batches[0])) // (4 * max(self.num_workers, 1))
        blocks = list(_blocks(batches, min(fair, _WORKER_BLOCK_BYTES // self._bytes_of(len(asked.keys)))))
        tasks = (
            Task(
                source.subset(block.positions),
                asked.keys,
                block.turns,
                block.chosen(asked),
                asked.plain[block.positions],
            )
            for block in blocks
        )
        for block, crops in zip(blocks, self._workers.cut(tasks), strict=True):
            ids = source.ids[block.positions]
            uniforms = [
                _uniforms(key, ids, block.turns, rows)
                for key, rows in zip(asked.keys, block.chosen(asked), strict=True)
            ]
            views, plain_views = self._finished(crops, uniforms)
            yield from block.split(ids, views, plain_views, asked)

    def _finished(self, crops: Crops, uniforms: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        with torch.no_grad():
            views = []
            for pixels, draws in zip(crops[0], uniforms, strict=True):
                appearance = drawn_appearance(self.recipe, draws)
                unit = pixels.to(self.device, non_blocking=True).float().mul_(1 / 255)
                flipped = appearance.is_flipped.nonzero()[:, 0].to(self.device)
                unit.index_copy_(0, flipped, unit.index_select(0, flipped).flip(3))
                views.append(finish(unit, appearance, self.recipe))
            plain = normalise_(crops[1].to(self.device, non_blocking=True).float() * (1 / 255), self.recipe)
        return views, plain

    def close(self) -> None:
        """End the loader workers, which otherwise live as long as the viewer; a later batch would start new ones."""
        self._workers.close()


def _mask(name: str, asked: Tensor | None, source: ImageSource) -> Tensor:
    """A mask over the source, on the CPU; None chooses nothing."""
    mask = torch.zeros(len(source), dtype=torch.bool) if asked is None else asked.cpu()
    if mask.shape != (len(source),) or mask.dtype != torch.bool:
        raise ValueError(f"{name} must be a bool mask over {len(source)} images, got {mask.dtype} {mask.shape}")
    return mask


def _of_batches(name: str, rows: Sequence[Tensor] | None, batches: Sequence[Tensor]) -> list[Tensor]:
    """One number for each position of each batch, on the CPU; None: zeros."""
    if rows is None:
        return [torch.zeros_like(positions) for positions in batches]
    if [row.shape for row in rows] != [positions.shape for positions in batches]:
        raise ValueError(f"{name} must have one number for each position of each batch")
    return [row.cpu() for row in rows]


def _uniforms(key: ViewKey, ids: Tensor, turns: Tensor, rows: Tensor | None) -> Tensor:
    """The draws of a view of these images, or of the chosen rows of them."""
    return key.uniforms(ids, turns) if rows is None else key.uniforms(ids[rows], turns[rows])


def _blocks(batches: _Batches, most: int) -> Iterator[_Block]:
    """Consecutive batches, together of at most so many images; a larger batch is a block of its own."""
    sizes = [len(positions) for positions in batches[0]]
    start = 0
    while start < len(sizes):
        end, count = start + 1, sizes[start]
        while end < len(sizes) and count + sizes[end] <= most:
            count += sizes[end]
            end += 1
        positions, turns, has_further = (torch.cat([*rows[start:end]]) for rows in batches)
        yield _Block(positions, turns, has_further, sizes[start:end])
        start = end


def _sizes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Heights and widths (N,), on the CPU where boxes are drawn."""
    count, _, height, width = images.shape
    return torch.full((count,), height), torch.full((count,), width)
