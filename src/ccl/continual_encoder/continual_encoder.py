"""The whole of it from Python: `ccl.ContinualEncoder`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ccl.continual_encoder.contact_sheet import Answer, check_sheet_target, write_sheet
from ccl.continual_encoder.default_settings import FEWEST_IMAGES, refuse_mistakes
from ccl.continual_encoder.encoder_folder import STATE, EncoderFolder, Ledger
from ccl.continual_encoder.exporting import Exported
from ccl.continual_encoder.frozen_encoder import FrozenEncoder, frozen
from ccl.continual_encoder.hub_folder import write_export
from ccl.continual_encoder.learn_drop import KEEP_VERSIONS, Gather, Options, Outcome, learn
from ccl.continual_encoder.page import write_state_page
from ccl.continual_encoder.pretrained_start import begin_from
from ccl.continual_encoder.searching import Collection, find
from ccl.data import EncodedSource, Gathered, ImageSource, chunked, gather, gather_arrays
from ccl.errors import UserError
from ccl.runs.display import make_display
from ccl.runs.folder_lock import locked
from ccl.training import Observer

Images = str | Path | Iterable[Any]  # paths and folders, arrays, tensors, or anything that yields images
CHUNK = 2_000  # images of an endless stream that become one step


class ContinualEncoder:
    """An encoder in a folder: it learns from drops of unlabelled images, keeps a small memory, and is used meanwhile.

    encoder = ContinualEncoder.create("state", epochs=50)
    encoder.learn("week-1/")
    rows = encoder.encode("week-1/")  # (N, F)
    """

    def __init__(self, folder: EncoderFolder) -> None:
        self._state = folder

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        weights: str | Path | Mapping[str, Any] | None = None,
        keep: str | Path | Sequence[str | Path] = (),
        **settings: Any,
    ) -> "ContinualEncoder":
        """A new state. Settings that aren't given are chosen when the first images are known.

        With `weights` ("timm:NAME", a file, a folder) it starts from these as version 0, and images at `keep` stand for
        what they know. A mapping is the settings of that name: the weights of losses.
        """
        if isinstance(weights, Mapping):
            settings["weights"], weights = weights, None
        state = EncoderFolder(Path(folder))
        refuse_mistakes(settings)
        if weights is None and keep:
            raise UserError("keep is for an encoder that starts from weights; name them too")
        if weights is not None:
            if state.exists():
                raise UserError(
                    f"{folder} is an encoder folder already; ContinualEncoder.open({str(folder)!r}) opens it"
                )
            begin_from(state, str(weights), settings, [keep] if isinstance(keep, str | Path) else keep)
            return cls(state)
        with locked(state.path, STATE):
            if state.exists():
                raise UserError(
                    f"{folder} is an encoder folder already; ContinualEncoder.open({str(folder)!r}) opens it"
                )
            state.write(Ledger(asked=settings))
        return cls(state)

    @classmethod
    def open(cls, folder: str | Path) -> "ContinualEncoder":
        """An encoder folder that exists."""
        state = EncoderFolder(Path(folder))
        state.ledger()
        return cls(state)

    @property
    def folder(self) -> Path:
        return self._state.path

    @property
    def version(self) -> int:
        """The current version; 0 before the first drop: what it started from, if it started from weights."""
        return self._state.ledger().current

    @property
    def pinned(self) -> int | None:
        """The version that is used whatever is learned, if one is pinned."""
        return self._state.ledger().pinned

    @property
    def versions(self) -> list[int]:
        """Those that are still there."""
        return self._state.numbers(self._state.ledger())

    @property
    def num_steps(self) -> int:
        """Drops that the current version has learned."""
        current = self.version
        return len(self._state.versions.load(current).about["steps"]) if current else 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """All that happened to the state, the oldest first."""
        return self._state.ledger().events

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
        settings: Mapping[str, Any] | None = None,
        progress: bool | Observer = True,
    ) -> list[Outcome]:
        """Take in the next drop; interrupted, the same call resumes. An outcome for each step that this made.

        Paths, folders, globs, archives and lists of paths, a 4-D array or tensor, and a list of images are one drop.
        Any other iterable is a stream without boundaries: every `chunk` images that are new become a step.
        """
        if keep_versions < 1:
            raise UserError(f"keep_versions must be at least 1, got {keep_versions}")
        display = progress if not isinstance(progress, bool) else make_display() if progress else Observer()
        options = Options(
            name=name or _name_of(images),
            asked=settings,
            probe=None if probe is None else Path(probe),
            max_drop=max_drop,
            restart=restart,
            keep_versions=keep_versions,
        )
        outcomes = []
        for drop in self._drops(images, chunk):
            outcomes.append(learn(self._state, drop, display, options))
            write_state_page(self._state)
            if outcomes[-1].kind == "refused":
                break
        return outcomes

    def _drops(self, images: Images, chunk: int) -> Iterator[Gather]:
        if isinstance(images, str | Path | np.ndarray | Tensor | Sequence):
            yield _gather(images)
        else:
            for part in chunked(self._unseen(images), chunk, minimum=FEWEST_IMAGES):
                yield _gather(part)

    def _unseen(self, images: Iterable[Any]) -> Iterator[Any]:
        """Images not met before: so that a stream that is begun anew is cut where it was cut the first time."""
        ledger = self._state.ledger() if self._state.exists() else Ledger()
        is_new = not self._state.exists() or self._state.knows_nothing(ledger)
        known = set() if is_new else self._state.seen(self._state.versions.load(ledger.current).about["seen"])
        for image in images:
            (digest,) = gather_arrays([image]).digests
            if digest not in known:
                known.add(digest)
                yield image

    def frozen(self, version: int | None = None) -> FrozenEncoder:
        """A version to read images with; by default the pinned one, else the current one."""
        return frozen(self.folder, version)

    def encode(self, images: Images, *, version: int | None = None) -> NDArray[np.float32]:
        """Features (N, F) of the images, by the pinned version, else the current one; unusable files are refused."""
        with TemporaryDirectory() as scratch, closing(self.frozen(version)) as encoder:
            rows: NDArray[np.float32] = encoder.features(_gathered(images, Path(scratch)).source).numpy()
            return rows

    def search(
        self, queries: Images, images: Images, path: str | Path, *, k: int = 10, version: int | None = None
    ) -> list[Answer]:
        """The k images most like each query, best first; written as a sheet to look at, .html or .png."""
        check_sheet_target(Path(path))
        with TemporaryDirectory() as scratch, closing(self.frozen(version)) as encoder:
            asked, searched = (
                Collection(encoder.features(found.source), found.names, found.source.encoded)
                for found in (_gathered(some, Path(scratch)) for some in (queries, images))
            )
            answers = find(asked, searched, k)
            write_sheet(Path(path), answers, f"Most alike, by version {encoder.version}")
            return answers

    def health(self, version: int | None = None) -> dict[str, Any]:
        """How this version compared with the one before on the remembered images, as plain values, with a verdict."""
        steps = self._state.version(version).about["steps"]
        if not steps:
            raise UserError(f"version 0 of {self.folder} is what it started from: there is nothing to compare it with")
        step = steps[-1]
        return {"verdict": step["verdict"], **(step["health"] or {}), "accuracy": step["accuracy"]}

    def export(self, path: str | Path, *, images: Images | None = None, version: int | None = None) -> Exported:
        """Write the encoder as .safetensors, .pt2 or .onnx with its card, checked against the original on the images.

        A path without a suffix is a folder in the hub's layout. Without images it is checked on those it remembers.
        """
        with TemporaryDirectory() as scratch, closing(self.frozen(version)) as encoder:
            if images is None:
                memory = self._state.memory_of(encoder.version)
                source: ImageSource = EncodedSource(memory.files, memory.ids)
            else:
                source = _gathered(images, Path(scratch)).source
            return write_export(encoder, Path(path), source if len(source) else None)[0]

    def rollback(self, to: int | None = None) -> int:
        """Make an older version current, by default the one before; what was learned since may be learned anew."""
        with locked(self.folder, STATE):
            ledger = self._state.ledger()
            if ledger.current == 0:
                raise UserError(f"{self.folder} has learned nothing yet, so there is nothing to roll back")
            goal = self._state.versions.load(ledger.current).about["parent"] if to is None else to
            if goal not in self._state.numbers(ledger):
                raise UserError(
                    f"{self.folder} has no version {goal} to roll back to; there are {self._state.listed(ledger)}"
                )
            if goal == ledger.current:
                raise UserError(f"version {goal} is the current one already")
            self._state.versions.load(goal)  # raises where it is not good
            ledger.record("rolled back", version=goal, before=ledger.current)
            ledger.current = goal
            self._state.write(ledger)
        write_state_page(self._state)
        return goal

    def pin(self, version: int | None) -> None:
        """Use this version whatever is learned meanwhile; None: the current one, always."""
        with locked(self.folder, STATE):
            ledger = self._state.ledger()
            if version is not None and version not in self._state.numbers(ledger):
                raise UserError(f"{self.folder} has no version {version}; there are {self._state.listed(ledger)}")
            ledger.pinned = version
            ledger.record("unpinned" if version is None else "pinned", version=version)
            self._state.write(ledger)
        write_state_page(self._state)


def _gather(images: Images) -> Gather:
    """How these images, all of them as one, are gathered."""
    if isinstance(images, str | Path):
        return partial(gather, [images])
    if isinstance(images, Sequence) and len(images) and all(isinstance(image, str | Path) for image in images):
        return partial(gather, images)
    return lambda scratch, progress, *how: gather_arrays(images, None, *how)


def _gathered(images: Images, scratch: Path) -> Gathered:
    """All of them; refuses what has unusable files, since rows would no longer match what was given."""
    found = _gather(images)(scratch, lambda done, total: None, None, lambda digest: False)
    if found.skipped:
        raise UserError(f"{len(found.skipped)} files are not usable images, the first is {found.skipped[0]}")
    return found


def _name_of(images: Images) -> str:
    """What people call a drop: the last part of its first path, or the kind of what was given."""
    if isinstance(images, Sequence) and not isinstance(images, str) and len(images):
        first = images[0]
        more = f" and {len(images) - 1} more" if len(images) > 1 and isinstance(first, str | Path) else ""
        return _name_of(first) + more if isinstance(first, str | Path) else f"{len(images)} images"
    if isinstance(images, str | Path):
        return Path(images).resolve().name or str(images)
    return type(images).__name__
