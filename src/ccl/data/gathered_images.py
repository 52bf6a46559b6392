"""What a pass over images found, and of it what is not known yet, each image once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, overload

import torch
from torch import Tensor

from ccl.data.dataset import BadImage
from ccl.data.sources import ImageSource

IsKnown = Callable[[bytes], bool]  # of a digest


class SourceNames(Sequence[str]):
    """The names of some images of a source, made when asked for: a million strings are a hundred megabytes."""

    def __init__(self, source: ImageSource, positions: Sequence[int]) -> None:
        self._source, self._positions = source, positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> "SourceNames": ...
    def __getitem__(self, place: int | slice) -> "str | SourceNames":
        if isinstance(place, slice):
            return SourceNames(self._source, self._positions[place])
        return self._source.name(self._positions[place])


@dataclass(frozen=True)
class Gathered:
    """Images that can all be decoded, in a fixed order."""

    source: ImageSource
    names: Sequence[str]  # for people: a path, "archive.zip::inner/path.png" or "image 17"
    digests: tuple[bytes, ...]  # 16 bytes each: of a file's bytes, or of an array's shape and pixels; b"" if not asked
    shorter_sides: Tensor  # (N,) in pixels, of the images as they came; 0 for a file that was not opened
    positions: Tensor  # (N,) in the source that was read
    skipped: tuple[BadImage, ...]  # files that are called like images and are not usable, by their names as above
    notes: tuple[str, ...]  # what the user should know, one line each
    num_known: int = 0  # left out because they are known
    num_repeated: int = 0  # left out because they came before
    originals: ImageSource | None = None  # the same images as they came, where the source has them in one size

    @property
    def median_side(self) -> int:
        """The shorter side of a typical image, in pixels; there must be one."""
        return int(self.shorter_sides.sort().values[len(self.shorter_sides) // 2])

    def without(self, is_known: IsKnown, first_id: int = 0) -> Self:
        """The images whose digests are not known, the first of each content, with ids from `first_id` on."""
        kept: dict[bytes, int] = {}
        num_known = 0
        for position, digest in enumerate(self.digests):
            if is_known(digest):
                num_known += 1
            else:
                kept.setdefault(digest, position)
        positions = torch.tensor(list(kept.values()), dtype=torch.int64)
        source = self.source if len(kept) == len(self.digests) else self.source.subset(positions)
        return replace(
            self,
            source=source.with_ids(first_id + torch.arange(len(kept))),
            names=tuple(self.names[position] for position in kept.values()),
            digests=tuple(kept),
            shorter_sides=self.shorter_sides[positions],
            positions=self.positions[positions],
            num_known=self.num_known + num_known,
            num_repeated=len(self.digests) - num_known - len(kept),
            originals=None if self.originals is None else self.originals.subset(positions),
        )
