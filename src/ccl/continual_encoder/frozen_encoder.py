"""One version of an encoder, opened to read images with, and what files made with it say of it."""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ccl.continual_encoder.folder import EncoderFolder
from ccl.data import MAX_BAD, BadImage, Found, ImageSource
from ccl.data.ingest import ingest
from ccl.encoders import Encoder, EncoderOptions, extract
from ccl.errors import UserError
from ccl.memory import FeatureQueue
from ccl.reading import ReadingSettings, build_device, build_encoder, build_viewer
from ccl.training import Learner
from ccl.training.checkpoint import Checkpoint, by_part
from ccl.views import Recipe, Viewer

STUDENT = "encoder."  # the learner's tensors that are the student's
Progress = Callable[[int, int], None]  # (done, total) images


@dataclass(frozen=True)
class Features:
    """Of the usable images of some that were found, in their order."""

    rows: Tensor  # (N, F) float32 on the CPU
    names: Sequence[str]
    source: ImageSource  # as they came; to look into one opens it again
    skipped: tuple[BadImage, ...]


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder that no longer learns, with all it takes to show it images as it is used to see them.

    >>> encoder = ccl.frozen("my-encoder")
    >>> encoder.version, encoder.preprocessing["size"]
    (1, 16)
    """

    encoder: Encoder
    viewer: Viewer
    architecture: EncoderOptions  # backbone, stem, width, dim, head
    version: int
    resize: int | None = None  # the side to which every image is brought before it is seen; None: as it is
    about: Mapping[str, Any] = field(default_factory=dict)  # what the version says of itself, as JSON values

    def close(self) -> None:
        """End the loader workers, if there are any."""
        self.viewer.close()

    @property
    def recipe(self) -> Recipe:
        return self.viewer.recipe

    def read(
        self,
        found: Found,
        progress: Progress | None = None,
        max_bad: float = MAX_BAD,
        look: Callable[[Tensor, Sequence[bytes]], None] | None = None,
    ) -> Features:
        """What it makes of images, each opened once; more than `max_bad` percent of unusable ones are refused.

        `look` is given rows (n, F) and the n files as they pass by; b"" for what came as an array.
        """
        rows, positions, skipped = [torch.empty(0, self.encoder.num_features)], list[int](), list[BadImage]()
        for chunk in ingest(found, self.resize, progress=progress, max_bad=max_bad, keeps_files=look is not None):
            if len(chunk.source):
                rows.append(extract(self.encoder, chunk.source, self.viewer))
                if look is not None:
                    look(rows[-1], chunk.files or [b""] * len(chunk.source))
            positions += chunk.positions
            skipped += chunk.bad
        if not all(torch.isfinite(some).all() for some in rows):
            raise UserError(f"version {self.version} makes nan or infinity of these images; use another one")
        sound = found.subset(torch.tensor(positions, dtype=torch.int64))
        return Features(torch.cat(rows), sound.names, sound.source, tuple(skipped))

    def features(self, source: ImageSource, progress: Progress | None = None) -> Tensor:
        """Rows (N, F) in the source's order, float32 on the CPU; the source may not be empty."""
        return self.read(Found(source), progress, max_bad=0.0).rows

    @property
    def preprocessing(self) -> dict[str, Any]:
        """From an 8-bit RGB picture, upright and with alpha laid on white, to what the backbone reads, in this order.

        `resize`: the centre square is brought to this side, bilinear and anti-aliased, in 8 bits (None: left out). Then
        the centre square of `crop_fraction` of the shorter side, rounded, is brought to `size` likewise; then
        (value · scale − mean) / std, channels first. `docs/using.md` has it in ten lines of Pillow and NumPy.
        """
        return {
            "resize": self.resize,
            "crop_fraction": self.recipe.plain_fraction,
            "size": self.recipe.size,
            "interpolation": "bilinear, anti-aliased",
            "scale": 1 / 255,
            "mean": list(self.recipe.mean),
            "std": list(self.recipe.std),
        }

    @property
    def fingerprint(self) -> str:
        """Equal where the features are: sixteen hexadecimal digits of backbone, its weights and the preprocessing."""
        state = hashlib.sha256(json.dumps([self._backbone, self.preprocessing], sort_keys=True).encode())
        for name, tensor in sorted(self.encoder.backbone.state_dict().items()):
            state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return state.hexdigest()[:16]

    @property
    def description(self) -> dict[str, Any]:
        """The version and all it takes to use its backbone elsewhere, as JSON values, for files made with it."""
        return {
            "version": self.version,
            "fingerprint": self.fingerprint,
            "architecture": self._backbone,
            "num_features": self.encoder.num_features,
            "preprocessing": self.preprocessing,
            "ccl": importlib.metadata.version("ccl"),
            "torch": torch.__version__,
        }

    @property
    def _backbone(self) -> dict[str, Any]:
        """In the words of the settings; a width of None is the published one."""
        options = {"options"} if self.architecture.options else set()
        return self.architecture.model_dump(include={"backbone", "stem", "width", *options})

    def refuse_other(self, maker: Mapping[str, Any], what: str, advice: str) -> None:
        """Refuse a file whose maker, as `description` has it, gives other features than this encoder."""
        if maker.get("fingerprint") == self.fingerprint:
            return
        then, now = maker.get("version"), self.version
        of_what = f"version {then} of another encoder" if then == now else f"version {then}, and this is version {now}"
        raise UserError(f"{what} was made with {of_what}: features of one say nothing to the other; {advice}")


def frozen(folder: str | Path, version: int | None = None) -> FrozenEncoder:
    """The encoder of this version; by default of the pinned one, else of the current one.

    >>> encoder = ccl.frozen("my-encoder")
    >>> encoder.features(ccl.load_dataset("symbols", images_per_class=2).train).shape[0]
    20
    """
    encoder_folder = EncoderFolder(Path(folder))
    return thawed(encoder_folder, encoder_folder.version(version))


def frozen_start(folder: str | Path) -> FrozenEncoder:
    """The encoder before its first drop: version 0 where there is one, else as it is initialised from the seed.

    >>> ccl.frozen_start("my-encoder").version
    0
    """
    encoder_folder = EncoderFolder(Path(folder))
    return started(encoder_folder, None)


def started(folder: EncoderFolder, settings: ReadingSettings | None) -> FrozenEncoder:
    """The encoder before its first drop; `settings` are for an encoder that has no version yet."""
    if 0 in folder.versions.numbers():
        return thawed(folder, folder.load(0))
    if settings is None:
        settings = folder.reading_settings(folder.current_about())
    return _opened(build_encoder(settings, build_device(settings)), settings, 0, {})


def student_of(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The student's weights in a version, by the encoder's names."""
    tensors = by_part(checkpoint.tensors)["learner"]
    return {name.removeprefix(STUDENT): value for name, value in tensors.items() if name.startswith(STUDENT)}


def thawed(folder: EncoderFolder, checkpoint: Checkpoint) -> FrozenEncoder:
    """The encoder that a version holds, read with the settings that it was learned with."""
    about = checkpoint.about
    settings = folder.reading_settings(about)
    device = build_device(settings)
    if settings.used_weight_rule and about["steps"]:
        from ccl.runs.build import build_learner

        # What is used may be another network than the student: the rule knows.
        learner = build_learner(folder.settings(about), device)
        load_learner(learner, by_part(checkpoint.tensors)["learner"])
        encoder = learner.product
    else:
        encoder = build_encoder(settings, device)
        _fill(encoder, student_of(checkpoint))
    return _opened(encoder, settings, checkpoint.number, about)


def _opened(encoder: Encoder, settings: ReadingSettings, version: int, about: Mapping[str, Any]) -> FrozenEncoder:
    encoder.eval()
    viewer = build_viewer(settings, build_device(settings))
    return FrozenEncoder(encoder, viewer, settings.encoder, version, settings.data.resize, about)


def load_learner(learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    """Load a version's tensors; a queue that is longer now keeps what it held, and its other rows are as when new."""
    state = dict(tensors)
    for name, queue in learner.named_modules():
        if isinstance(queue, FeatureQueue):
            own = {key: f"{name}.{key}" for key in ("vectors", "ids", "cursor")}
            held = queue.holding(*(state[key] for key in own.values()))
            state |= {own[key]: tensor for key, tensor in held.items()}
    _fill(learner, state)


def _fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        which = " ".join(str(error).split())[:160]
        raise UserError(f"the weights of this version do not fit its settings ({which}); use another version") from None
