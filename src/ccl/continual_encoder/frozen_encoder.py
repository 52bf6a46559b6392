"""One version of an encoder, opened to read images with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ccl.continual_encoder.folder import EncoderFolder
from ccl.data import ImageSource, squared
from ccl.encoders import Encoder
from ccl.encoders.reading import extract
from ccl.runs.build import build_device, build_encoder, build_learner, build_viewer
from ccl.runs.run_checkpoint import by_part
from ccl.settings import EncoderSettings, Settings
from ccl.training.checkpoint import Checkpoint
from ccl.views import Recipe, Viewer

_CHUNK = 2048  # images that are held decoded at one time
_STUDENT = "encoder."  # the learner's tensors that are the student's


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


def frozen(state: Path, version: int | None = None) -> FrozenEncoder:
    """The encoder of this version; by default of the pinned one, else of the current one."""
    folder = EncoderFolder(state)
    checkpoint = folder.version(version)
    settings = folder.settings()
    assert settings is not None, "an encoder folder with a version has settings"
    return thawed(settings, checkpoint)


def thawed(settings: Settings, checkpoint: Checkpoint) -> FrozenEncoder:
    """The encoder that a version holds."""
    device = build_device(settings)
    tensors = by_part(checkpoint.tensors)["learner"]
    if settings.method.weight_rule:  # what is used may be another network than the student: the rule knows
        learner = build_learner(settings, device)
        learner.load_state_dict(tensors)
        encoder = learner.product
    else:
        encoder = build_encoder(settings, device)
        encoder.load_state_dict(
            {name.removeprefix(_STUDENT): value for name, value in tensors.items() if name.startswith(_STUDENT)}
        )
    encoder.eval()
    viewer = build_viewer(settings, device)
    return FrozenEncoder(encoder, viewer, settings.encoder, checkpoint.number, settings.data.resize, checkpoint.about)
