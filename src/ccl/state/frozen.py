"""One version of a state's encoder, to read images with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ccl.data import ImageSource
from ccl.data.resizing import squared
from ccl.encoders import Encoder
from ccl.encoders.reading import extract
from ccl.settings import EncoderSettings
from ccl.views import Recipe, Viewer

_CHUNK = 2048  # images that are held decoded at one time


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder that no longer learns, with all it takes to show it images as it is used to see them."""

    encoder: Encoder
    viewer: Viewer
    architecture: EncoderSettings  # backbone, stem, width, dim, head
    version: int
    resize: int | None = None  # the side to which every image is brought before it is seen; None: as it is
    about: Mapping[str, Any] = field(default_factory=dict)  # what the version says of itself, as JSON values

    def close(self) -> None:
        """End the loader workers, if there are any."""
        self.viewer.close()

    @property
    def recipe(self) -> Recipe:
        return self.viewer.recipe

    def sized(self, source: ImageSource) -> ImageSource:
        """The images in the size in which the encoder learned to see them."""
        return source if self.resize is None else squared(source, self.resize)

    def features(self, source: ImageSource, progress: Callable[[int, int], None] | None = None) -> Tensor:
        """Rows (N, F) in the source's order, float32 on the CPU; the source may not be empty."""
        rows = []
        for chunk in torch.split(torch.arange(len(source)), _CHUNK):
            rows.append(extract(self.encoder, self.sized(source.subset(chunk)), self.viewer))
            if progress is not None:
                progress(int(chunk[-1]) + 1, len(source))
        return torch.cat(rows)
