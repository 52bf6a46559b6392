"""The viewer: from positions in a source to finished views, those of several small batches in one block."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccl import ranks
from ccl.data.image_sources import ImageSource
from ccl.views.colour import jitter_, solarise, to_grey
from ccl.views.loader_workers import AskedView, Task, Workers
from ccl.views.random_draws import Appearance, ViewKey, drawn_appearance, drawn_boxes
from ccl.views.recipes import Recipe
from ccl.views.resampling import blur_radius, crop_resize, gaussian_blur

_BLOCK_BYTES = 2**23  # of finished views made at once, at least a batch of them; measured on a CPU
_WORKER_BLOCK_BYTES = 2**22  # of those that one task of a loader worker brings, so that the first ones come soon
# Values worked on at once on a CPU, so that a dozen operations in a row find them in the cache.
_CPU_BLOCK = 2**20


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
class _Block:
    """Some consecutive batches, N images together, whose views are made at once."""

    sizes: list[int]  # of each batch
    positions: Tensor  # (N,)
    ids: Tensor  # (N,)
    turns: Tensor  # (N,)
    has_further: Tensor  # (N,) bool
    asked: list[AskedView]  # views of all images, then further ones of some, then the plain one of some

    def split(self, made: Sequence[Tensor], num_views: int) -> Iterator[ViewBatch]:
        """Split what was made of the block's images back into its batches."""
        rows = (self.positions, self.ids, self.turns, self.has_further)
        views = [torch.split(view, one.counts(self.sizes)) for one, view in zip(self.asked, made, strict=True)]
        parts = [torch.split(values, self.sizes) for values in rows]
        for positions, ids, turns, has_further, *shown in zip(*parts, *views, strict=True):
            whole, further = tuple(shown[:num_views]), tuple(shown[num_views:-1])
            yield ViewBatch(positions, ids, whole, shown[-1], None, turns, further, has_further)


class Viewer:
    """Shows images by a recipe; a view depends on (seed, moment, image id, turn, view number) and on nothing else."""

    def __init__(self, recipe: Recipe, seed: int, device: torch.device | str = "cpu", num_workers: int = 0) -> None:
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

        Of each batch the images of a mask (N,) have further views. An image that comes twice gets other views by
        another turn, one (N,) for each batch; None: turn 0.
        """
        batches = [positions.cpu() for positions in batches]
        none = [torch.zeros_like(positions) for positions in batches]
        turns = none if turns is None else [rows.cpu() for rows in turns]
        further = none if further is None else [rows.cpu() for rows in further]
        is_plain = torch.zeros(len(source), dtype=torch.bool) if plain is None else plain.cpu()
        keys = [ViewKey(self.seed, moment, view) for view in range(num_views + num_further)]
        is_array = source.image_size is not None
        most = (_BLOCK_BYTES if is_array else _WORKER_BLOCK_BYTES) // (4 * 3 * self.recipe.size**2 * max(len(keys), 1))
        if not is_array:  # several blocks for each worker, however few images there are
            most = min(most, sum(map(len, batches)) // (4 * max(self.num_workers, 1)))
        blocks = []
        for start, end in _runs([len(positions) for positions in batches], most):
            positions, has_further = torch.cat(batches[start:end]), torch.cat(further[start:end]).bool()
            asked = [AskedView(key, None if view < num_views else has_further) for view, key in enumerate(keys)]
            asked.append(AskedView(None, is_plain[positions]))
            sizes, ids = [len(part) for part in batches[start:end]], source.ids[positions]
            blocks.append(_Block(sizes, positions, ids, torch.cat(turns[start:end]), has_further, asked))
        return self._made(source, blocks, num_views)

    def plain_batches(self, source: ImageSource, batch_size: int) -> Iterator[Tensor]:
        """All images in order as plain views, (at most batch_size, 3, S, S)."""
        everything = torch.ones(len(source), dtype=torch.bool)
        starts = range(0, len(source), batch_size)
        batches = [torch.arange(start, min(start + batch_size, len(source))) for start in starts]
        for batch in self.batches(source, batches, plain=everything):
            yield batch.plain

    def _made(self, source: ImageSource, blocks: list[_Block], num_views: int) -> Iterator[ViewBatch]:
        tasks = (Task(source.subset(block.positions), block.turns, block.asked) for block in blocks)
        crops = self._workers.cut(tasks) if source.image_size is None else None
        for block in blocks:
            with torch.no_grad():
                if crops is None:
                    images = source.read(block.positions).to(self.device, non_blocking=True)  # uint8 (N, 3, H, W)
                    shown = [one.of(images) for one in block.asked]
                else:
                    shown = [pixels.to(self.device, non_blocking=True) for pixels in next(crops)]
                uniforms = [one.uniforms(block.ids, block.turns) for one in block.asked]
                made = [self._view(*one, crops is not None) for one in zip(shown, uniforms, strict=True)]
            yield from block.split(made, num_views)

    def _view(self, pixels: Tensor, uniforms: Tensor | None, is_cut: bool) -> Tensor:
        """Images (N, 3, H, W), or what is cut of them, finished by these numbers; None: as plain ones."""
        look = None if uniforms is None else drawn_appearance(self.recipe, uniforms)
        flip = torch.zeros(len(pixels), dtype=torch.bool) if look is None else look.is_flipped
        if is_cut:
            crops, flipped = pixels.float().mul_(1 / 255), flip.nonzero()[:, 0].to(self.device)
            crops.index_copy_(0, flipped, crops.index_select(0, flipped).flip(3))
        else:
            count, _, height, width = pixels.shape
            sides = torch.full((count,), height), torch.full((count,), width)
            boxes = drawn_boxes(self.recipe, *sides, uniforms).to(self.device)
            crops = crop_resize(pixels, boxes, flip.to(self.device), self.recipe.size)
        return finish(crops, look, self.recipe)

    def close(self) -> None:
        """End the loader workers, which otherwise live as long as the viewer; a later batch would start new ones."""
        self._workers.close()


def _runs(sizes: list[int], most: int) -> Iterator[tuple[int, int]]:
    """First and last + 1 of consecutive batches, together of at most so many images; a larger one is alone."""
    start = 0
    while start < len(sizes):
        end, count = start + 1, sizes[start]
        while end < len(sizes) and count + sizes[end] <= most:
            count += sizes[end]
            end += 1
        yield start, end
        start = end


def finish(crops: Tensor, appearance: Appearance | None, recipe: Recipe) -> Tensor:
    """Crops (N, 3, S, S) in 0 … 1, already flipped, become normalised views, in their own memory; None: plain ones."""
    if appearance is None:
        return normalise_(crops, recipe)
    block = max(1, _CPU_BLOCK // max(1, crops[:1].numel())) if crops.device.type == "cpu" else max(1, len(crops))
    for start in range(0, len(crops), block):
        rows = slice(start, start + block)
        _colour_and_blur_(crops[rows], appearance.rows(rows), recipe)
        normalise_(crops[rows], recipe)
    return crops


def normalise_(images: Tensor, recipe: Recipe) -> Tensor:
    """Take the recipe's mean off images in 0 … 1, in place, and count in units of its standard deviation."""
    mean = torch.tensor(recipe.mean, device=images.device)[:, None, None]  # (3, 1, 1)
    std = torch.tensor(recipe.std, device=images.device)[:, None, None]
    return images.sub_(mean).div_(std)


def _colour_and_blur_(images: Tensor, appearance: Appearance, recipe: Recipe) -> None:
    device = images.device
    if appearance.is_jittered.any():
        jitter_(images, appearance.factors, appearance.orders, appearance.is_jittered)
    grey = appearance.is_grey.nonzero()[:, 0].to(device)
    if len(grey):
        images.index_copy_(0, grey, to_grey(images.index_select(0, grey)))
    blurred = appearance.is_blurred.nonzero()[:, 0].to(device)
    if len(blurred):
        sigmas = appearance.sigmas.to(device)[blurred]
        soft = gaussian_blur(images.index_select(0, blurred), sigmas, blur_radius(recipe.max_sigma))
        images.index_copy_(0, blurred, soft)
    solarised = appearance.is_solarised.nonzero()[:, 0].to(device)
    if len(solarised):
        images.index_copy_(0, solarised, solarise(images.index_select(0, solarised)))
