"""Images brought to one square size, that still know the files they came from."""

from collections.abc import Sequence

import numpy as np
import torch

from ccl.data.arrays import square_picture
from ccl.data.decoding import BadImageError, is_heif
from ccl.data.in_memory import content_digest
from ccl.data.sources import ArraySource, EncodedSource, ImageSource
from ccl.errors import UserError


class SquaredSource(ArraySource):
    """What is kept of an image is its original file or a PNG of its square, whichever is shorter.

    Both give the same pixels: `alike` squares originals as they were squared when they were learned.
    """

    def __init__(self, squares: ArraySource, originals: ImageSource, digests: Sequence[bytes]) -> None:
        super().__init__(squares.images, squares.ids)
        self._originals, self._digests = originals, digests
        self._encoded: dict[int, bytes] = {}  # a budget measures what is then kept: a file is opened once for both

    def encoded(self, position: int) -> bytes:
        if position not in self._encoded:
            self._encoded[position] = self._shorter(position)
        return self._encoded[position]

    def _shorter(self, position: int) -> bytes:
        square = super().encoded(position)
        try:
            original = self._originals.encoded(position)
        except (BadImageError, UserError):  # deleted since it was read, or its shard or store is lost
            return square
        is_same = content_digest(original) == self._digests[position]
        # HEIC needs a package that may be missing where the folder is opened next.
        return original if is_same and len(original) <= len(square) and not is_heif(original) else square

    def alike(self, kept: EncodedSource) -> ImageSource:
        """Images that were kept, in the size of these."""
        if not len(kept) or self.image_size is None:
            return kept
        pixels = [square_picture(kept.picture(position), self.image_size[0]) for position in range(len(kept))]
        return ArraySource(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), kept.ids)
