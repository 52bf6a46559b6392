"""`ccl.ContinualEncoder`: an encoder folder from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from ccl.continual_encoder import uses
from ccl.continual_encoder.defaults import refuse_mistakes
from ccl.continual_encoder.drop import KEEP_VERSIONS, Options, Outcome
from ccl.continual_encoder.exporting import Exported
from ccl.continual_encoder.features import PART_IMAGES
from ccl.continual_encoder.folder import EncoderFolder, folder_status, pin_version, roll_back
from ccl.continual_encoder.frozen import FrozenEncoder, frozen
from ccl.continual_encoder.judge import ProbeReport
from ccl.continual_encoder.pretrained_start import begin_from
from ccl.continual_encoder.searching import Answer
from ccl.continual_encoder.show import write_page
from ccl.continual_encoder.uses import CHUNK
from ccl.data import MAX_BAD, Images
from ccl.errors import UserError
from ccl.runs.display import make_display
from ccl.training import Observer


class ContinualEncoder:
    """An encoder in a folder: it learns from drops of unlabelled images, keeps a small memory, and is used meanwhile.

    Images are folders, archives, globs, lists of paths, arrays, tensors or pictures. The network here is made tiny, so
    that the example takes a second; without `encoder` it is chosen from the first images and the device.

    >>> images = ccl.load_dataset("symbols", images_per_class=3, resize=16).train.images  # uint8 (30, 3, 16, 16)
    >>> encoder = ccl.ContinualEncoder.create("my-encoder", epochs=1, encoder={"backbone": "convnet", "width": 4})
    >>> [outcome] = encoder.learn(images, progress=False)
    >>> outcome.kind, encoder.version
    ('learned', 1)
    >>> encoder.encode(images[:5]).shape[0]
    5
    """

    def __init__(self, folder: EncoderFolder) -> None:
        self._folder = folder

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        weights: str | Path | Mapping[str, Any] | None = None,
        keep: str | Path | Sequence[str | Path] = (),
        **settings: Any,
    ) -> "ContinualEncoder":
        """A new encoder folder. Settings that aren't given are chosen when the first images are known.

        `strategy` and `objective` are rows of `ccl methods`, "multi_view_rehearsal" and "moco_v2" unless given. A
        section is a mapping: `memory={"budget": "50MB"}`, `encoder={"backbone": "resnet18", "width": 64}`. A name that
        `ccl.Settings` does not have is refused with the nearest one.

        With `weights` ("timm:NAME", a file, a folder) it starts from these as version 0, and images at `keep` stand for
        what they know. A mapping is the settings of that name: the weights of losses.

        >>> encoder = ccl.ContinualEncoder.create("another-encoder", epochs=20, memory={"budget": "50MB"})
        >>> encoder.version
        0
        """
        if isinstance(weights, Mapping):
            settings["weights"], weights = weights, None
        settings = {name: value for name, value in settings.items() if value is not None}
        made, kept = EncoderFolder(Path(folder)), [keep] if isinstance(keep, str | Path) else keep
        refuse_mistakes(settings)
        if weights is not None:
            made.refuse_existing()
            with uses.listing_bad_images(made.path):
                begin_from(made, str(weights), settings, kept)
        elif kept:
            raise UserError("keep is for an encoder that starts from weights; name them too")
        else:
            made.make(settings)
        return cls(made)

    @classmethod
    def open(cls, folder: str | Path) -> "ContinualEncoder":
        """An encoder folder that exists."""
        opened = EncoderFolder(Path(folder))
        opened.ledger()
        return cls(opened)

    def __repr__(self) -> str:
        return f"ContinualEncoder.open({str(self.folder)!r})"

    def status(self) -> dict[str, Any]:
        """Versions, drops and events, and what is wrong with the current version, as `ccl status --json` has them."""
        return folder_status(self._folder)

    @property
    def folder(self) -> Path:
        return self._folder.path

    @property
    def version(self) -> int:
        """The current version; 0 before the first drop: what it started from, if it started from weights."""
        return self._folder.ledger().current

    @property
    def pinned(self) -> int | None:
        """The version that is used whatever is learned, if one is pinned."""
        return self._folder.ledger().pinned

    @property
    def versions(self) -> list[int]:
        """The versions still on disk."""
        return self._folder.numbers(self._folder.ledger())

    @property
    def num_steps(self) -> int:
        """Drops that the current version has learned."""
        current = self.version
        return len(self._folder.load(current).about["steps"]) if current else 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events of the folder, the oldest first."""
        return self._folder.ledger().events

    def learn(
        self,
        images: Images,
        *,
        name: str | None = None,
        probe: str | Path | None = None,
        max_drop: float | None = None,
        chunk: int = CHUNK,
        restart: bool = False,
        keep_versions: int = KEEP_VERSIONS,
        max_bad: float = MAX_BAD,
        dry_run: bool = False,
        settings: Mapping[str, Any] | None = None,
        progress: bool | Observer = True,
    ) -> list[Outcome]:
        """Take in the next drop; interrupted, the same call resumes. An outcome for each step that this made.

        Paths, folders, globs, archives and lists of paths, a 4-D array or tensor, and a list of images are one drop.
        Any other iterable is a stream without boundaries: every `chunk` images that are new become a step. More than
        `max_bad` percent of unusable files are refused, and listed beside the folder. With `dry_run` nothing is
        learned: the outcome's message says what time, memory and disk the drop would take.
        """
        display = progress if not isinstance(progress, bool) else make_display() if progress else Observer()
        options = Options(
            name=name,
            asked=settings,
            probe=None if probe is None else Path(probe),
            max_drop=max_drop,
            restart=restart,
            keep_versions=keep_versions,
            max_bad=max_bad,
            dry_run=dry_run,
        )
        return uses.learn(self.folder, images, options, chunk=chunk, display=display)

    def frozen(self, version: int | None = None) -> FrozenEncoder:
        """A version to read images with; by default the pinned one, else the current one."""
        return frozen(self.folder, version)

    @overload
    def encode(
        self,
        images: Images,
        *,
        version: int | None = None,
        return_paths: Literal[False] = False,
        max_bad: float | None = None,
    ) -> NDArray[np.float32]: ...
    @overload
    def encode(
        self,
        images: Images,
        *,
        version: int | None = None,
        return_paths: Literal[True],
        max_bad: float | None = None,
    ) -> tuple[NDArray[np.float32], list[str]]: ...
    def encode(
        self,
        images: Images,
        *,
        version: int | None = None,
        return_paths: bool = False,
        max_bad: float | None = None,
    ) -> NDArray[np.float32] | tuple[NDArray[np.float32], list[str]]:
        """Features (N, F) of the images, by the pinned version, else the current one; unusable files are refused.

        With `return_paths` also the path of each row; then unusable files, up to 5 %, are left out. `max_bad` is
        another percentage.
        """
        if max_bad is None:
            max_bad = MAX_BAD if return_paths else 0.0  # else rows would not match what was given
        found = uses.encode(self.folder, images, version=version, max_bad=max_bad)
        return (found.rows.numpy(), list(found.names)) if return_paths else found.rows.numpy()

    def encode_parts(
        self,
        images: Images,
        folder: str | Path,
        *,
        shard: str = "1/1",
        part_images: int = PART_IMAGES,
        version: int | None = None,
    ) -> None:
        """Write features in parts into a folder, those that are missing of the I-th of N shares: `shard` "I/N"."""
        uses.encode_parts(self.folder, images, Path(folder), shard=shard, part_images=part_images, version=version)

    def probe(
        self,
        labelled: Images,
        labels: Sequence[Any] | None = None,
        *,
        save: bool = True,
        path: str | Path | None = None,
        version: int | None = None,
        max_bad: float = MAX_BAD,
    ) -> ProbeReport:
        """Fit a classifier on labelled images; what it is worth beside the start, raw pixels and HOG.

        They are a folder of class folders, or any images with a label each, of which every fifth of a class is held
        out. Saved, here or at `path`, it is what `predict` uses, with a picture of its mistakes beside it.
        """
        out = None if path is None else Path(path)
        return uses.probe(self.folder, labelled, labels, out, save=save, version=version, max_bad=max_bad)

    def predict(
        self,
        images: Images,
        *,
        classifier: str | Path | None = None,
        any_version: bool = False,
        version: int | None = None,
        max_bad: float = MAX_BAD,
    ) -> list[tuple[str, str, float]]:
        """Path, class and confidence of each image, by the newest classifier of the version.

        Unusable files, up to `max_bad` percent, are left out. `any_version` takes the newest classifier of another
        version where this one has none.
        """
        return uses.predict(
            self.folder,
            images,
            classifier=None if classifier is None else Path(classifier),
            any_version=any_version,
            version=version,
            max_bad=max_bad,
        )

    def search(
        self,
        queries: Images,
        images: Images | None,
        path: str | Path,
        *,
        features: str | Path | None = None,
        k: int = 10,
        version: int | None = None,
        max_bad: float = MAX_BAD,
    ) -> list[Answer]:
        """The k images most like each query, best first; written as a sheet to look at, .html.

        With None for the images it searches among `features`, a file or a folder of parts.
        """
        stored = None if features is None else Path(features)
        return uses.search(
            self.folder, queries, images, Path(path), stored=stored, k=k, version=version, max_bad=max_bad
        )

    def health(self, version: int | None = None) -> dict[str, Any]:
        """A version compared with the one before on the remembered images, as plain values, with a verdict."""
        steps = self._folder.version(version).about["steps"]
        if not steps:
            raise UserError(f"version 0 of {self.folder} is what it started from: there is nothing to compare it with")
        step = steps[-1]
        known = {"verdict": step["verdict"], **(step["health"] or {}), "accuracy": step["accuracy"]}
        return known | ({"gains": step["gains"]} if "gains" in step else {})

    def export(self, path: str | Path, *, images: Images | None = None, version: int | None = None) -> Exported:
        """Write the encoder as .safetensors, .pt2 or .onnx with its card, checked against the original on the images.

        A path without a suffix is a folder in the hub's layout. Without images it is checked on those it remembers.
        """
        return uses.export(self.folder, Path(path), images, version=version)

    def rollback(self, to: int | None = None) -> int:
        """Make an older version current, by default the newest good one before the current one.

        What was learned since may be learned anew.
        """
        goal = roll_back(self._folder, to)
        write_page(self._folder)
        return goal

    def pin(self, version: int | None) -> None:
        """Use this version whatever is learned meanwhile; None: the current one, always."""
        pin_version(self._folder, version)
        write_page(self._folder)
