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


@dataclass(frozen=True)
class ViewBatch:
    """The views of N images, normalised, on the viewer's device."""

    positions: Tensor  # (N,) in the source
    ids: Tensor  # (N,)
    views: tuple[Tensor, ...]  # num_views of (N, 3, S, S)
    plain: Tensor  # (M, 3, S, S): the images whose plain view was asked for, in the batch's order; M may be 0
    everyone: tuple[Tensor, Tensor] | None = None  # positions and ids of all ranks' images, where they are known
    turns: Tensor | None = None  # (N,): how often each image was seen in this epoch before; None: not once

    @property
    def all_positions(self) -> Tensor:
        """Of the images of all ranks, (N of all ranks,)."""
        return ranks.gather(self.positions) if self.everyone is None else self.everyone[0]

    @property
    def all_ids(self) -> Tensor:
        """Of the images of all ranks, (N of all ranks,)."""
        return ranks.gather(self.ids) if self.everyone is None else self.everyone[1]


@dataclass(frozen=True)
class _Block:
    """Some consecutive batches, whose views are made together."""

    positions: Tensor  # (N,) of all of them
    turns: Tensor  # (N,)
    sizes: list[int]  # of each

    def split(self, ids: Tensor, views: Sequence[Tensor], plain: Tensor, is_plain: Tensor) -> Iterator[ViewBatch]:
        """The batches again; `is_plain` is the mask over the whole source by which `plain` was chosen."""
        positions = torch.split(self.positions, self.sizes)
        of_plain = torch.split(plain, [int(is_plain[rows].sum()) for rows in positions])
        of_views = [torch.split(view, self.sizes) for view in views]  # by view, then by batch
        of_ids, of_turns = torch.split(ids, self.sizes), torch.split(self.turns, self.sizes)
        for number, (rows, numbers, turns) in enumerate(zip(positions, of_ids, of_turns, strict=True)):
            shown = tuple(view[number] for view in of_views)
            yield ViewBatch(rows, numbers, shown, of_plain[number], turns=turns)


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
        plain: Tensor | None = None,
        turns: Sequence[Tensor] | None = None,
    ) -> Iterator[ViewBatch]:
        """The views of each batch of positions, and plain images where the mask `plain` (len(source),) says.

        An image may come twice: by another turn, one (N,) for each batch, it gets other views. None means turn 0.
        """
        mask = torch.zeros(len(source), dtype=torch.bool) if plain is None else plain.cpu()
        if mask.shape != (len(source),) or mask.dtype != torch.bool:
            raise ValueError(f"plain must be a bool mask over {len(source)} images, got {mask.dtype} {mask.shape}")
        batches = [positions.cpu() for positions in batches]
        turns = (
            [torch.zeros_like(positions) for positions in batches] if turns is None else [turn.cpu() for turn in turns]
        )
        if [turn.shape for turn in turns] != [positions.shape for positions in batches]:
            raise ValueError("turns must have one number for each position of each batch")
        keys = [ViewKey(self.seed, moment, view) for view in range(num_views)]
        make = self._from_arrays if source.image_size is not None else self._from_pictures
        return make(source, batches, turns, keys, mask)

    def plain_batches(self, source: ImageSource, batch_size: int) -> Iterator[Tensor]:
        """All images in order as plain views, (at most batch_size, 3, S, S)."""
        everything = torch.ones(len(source), dtype=torch.bool)
        starts = range(0, len(source), batch_size)
        batches = [torch.arange(start, min(start + batch_size, len(source))) for start in starts]
        for batch in self.batches(source, batches, plain=everything):
            yield batch.plain

    def _from_arrays(
        self,
        source: ImageSource,
        batches: Sequence[Tensor],
        turns: Sequence[Tensor],
        keys: Sequence[ViewKey],
        plain: Tensor,
    ) -> Iterator[ViewBatch]:
        for block in _blocks(batches, turns, _BLOCK_BYTES // self._bytes_of(len(keys))):
            ids = source.ids[block.positions]
            with torch.no_grad():
                images = source.read(block.positions).to(self.device, non_blocking=True)  # uint8 (N, 3, H, W)
                views = [self._view(images, key.uniforms(ids, block.turns)) for key in keys]
                chosen = images[plain[block.positions].to(self.device)]  # (M, 3, H, W)
                plain_views = self._plain(chosen)
            yield from block.split(ids, views, plain_views, plain)

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

    def _from_pictures(
        self,
        source: ImageSource,
        batches: Sequence[Tensor],
        turns: Sequence[Tensor],
        keys: Sequence[ViewKey],
        plain: Tensor,
    ) -> Iterator[ViewBatch]:
        # Several blocks for each worker, however few images there are.
        fair = sum(map(len, batches)) // (4 * max(self.num_workers, 1))
        blocks = list(_blocks(batches, turns, min(fair, _WORKER_BLOCK_BYTES // self._bytes_of(len(keys)))))
        tasks = (Task(source.subset(block.positions), keys, block.turns, plain[block.positions]) for block in blocks)
        for block, crops in zip(blocks, self._workers.cut(tasks), strict=True):
            ids = source.ids[block.positions]
            views, plain_views = self._finished(crops, [key.uniforms(ids, block.turns) for key in keys])
            yield from block.split(ids, views, plain_views, plain)

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


def _blocks(batches: Sequence[Tensor], turns: Sequence[Tensor], most: int) -> Iterator[_Block]:
    """Consecutive batches, together of at most so many images; a larger batch is a block of its own."""
    sizes = [len(positions) for positions in batches]
    start = 0
    while start < len(sizes):
        end, count = start + 1, sizes[start]
        while end < len(sizes) and count + sizes[end] <= most:
            count += sizes[end]
            end += 1
        yield _Block(torch.cat([*batches[start:end]]), torch.cat([*turns[start:end]]), sizes[start:end])
        start = end


def _sizes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Heights and widths (N,), on the CPU where boxes are drawn."""
    count, _, height, width = images.shape
    return torch.full((count,), height), torch.full((count,), width)
