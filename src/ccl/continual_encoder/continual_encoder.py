"""`ccl.ContinualEncoder`: an encoder folder, and what its versions are used for; the commands call these methods.

A use opens the version, reads every image once, writes what is asked for, and tells `display` what came of it.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from ccl.atomic_files import check_target, write_csv
from ccl.continual_encoder import feature_files
from ccl.continual_encoder.folder import EncoderFolder, folder_status, pin_version, promote, roll_back
from ccl.continual_encoder.frozen_encoder import FrozenEncoder, frozen, frozen_start
from ccl.continual_encoder.images import SILENT, found_images, listing_bad_images, name_of, read_images, tell_left_out
from ccl.continual_encoder.ledger import COLLAPSED
from ccl.data import MAX_BAD, EncodedSource, Images, ImageSource, collected
from ccl.data.dataset import labelled_dataset
from ccl.data.folders import scan
from ccl.errors import UserError, counted, printable
from ccl.training import Observer
from ccl.trusted_classes import named

if TYPE_CHECKING:  # each use loads what it needs: drawing and templates take a second
    from ccl.continual_encoder.exporting import Exported
    from ccl.continual_encoder.learn_drop import Outcome
    from ccl.continual_encoder.probe_classifiers import ProbeReport
    from ccl.continual_encoder.searching import Answer

CHUNK = 2_000  # images of an endless stream that become one step
KEEP_VERSIONS = 5


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

    def __init__(self, folder: str | Path) -> None:
        self._folder = EncoderFolder(Path(folder))

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
        from ccl.continual_encoder.choose_settings import refuse_mistakes
        from ccl.continual_encoder.pretrained_start import begin_from

        made, kept = cls(folder), [keep] if isinstance(keep, str | Path) else keep
        refuse_mistakes(settings)
        if weights is not None:
            made._folder.refuse_existing()
            begin_from(made._folder, str(weights), settings, kept)
        elif kept:
            raise UserError("keep is for an encoder that starts from weights; name them too")
        else:
            made._folder.make(settings)
        return made

    @classmethod
    def open(cls, folder: str | Path) -> "ContinualEncoder":
        """An encoder folder that exists."""
        opened = cls(folder)
        opened._folder.ledger()
        return opened

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
    ) -> "list[Outcome]":
        """Take in the next drop; interrupted, the same call resumes. An outcome for each step that this made.

        Paths, folders, globs, archives and lists of paths, a 4-D array or tensor, and a list of images are one drop.
        Any other iterable is a stream without boundaries: every `chunk` images that are new become a step. More than
        `max_bad` percent of unusable files are refused, and listed beside the folder. With `dry_run` nothing is
        learned: the outcome's message says what time, memory and disk the drop would take.
        """
        from ccl.continual_encoder.folder_page import write_page
        from ccl.continual_encoder.learn_drop import Options, drops, learn
        from ccl.runs.display import make_display

        if keep_versions < 1:
            raise UserError(f"keep_versions must be at least 1, got {keep_versions}")
        display = progress if not isinstance(progress, bool) else make_display() if progress else SILENT
        labelled = None if probe is None else Path(probe)
        name = printable(name or name_of(images))
        named(settings or {})
        options = Options(name, settings or {}, labelled, max_drop, restart, keep_versions, max_bad, dry_run)
        outcomes = list["Outcome"]()
        for drop in drops(self._folder, images, chunk):
            outcomes.append(learn(self._folder, drop, display, options))
            if outcomes[-1].kind == "planned":
                break
            write_page(self._folder)
            if outcomes[-1].kind == "refused":
                break
        return outcomes

    def frozen(self, version: int | None = None) -> FrozenEncoder:
        """A version to read images with; by default the pinned one, else the current one."""
        return frozen(self.folder, version)

    def _opened(self, version: int | None, display: Observer) -> FrozenEncoder:
        """The same, and what must be known of it."""
        encoder = self.frozen(version)
        steps = encoder.about.get("steps", [])
        verdict = str(steps[-1]["verdict"]) if steps else ""
        if steps and (steps[-1].get("faults") or verdict.startswith(COLLAPSED)):
            display.note(f"warning: version {encoder.version}: {'; '.join(steps[-1].get('faults', ())) or verdict}")
        others = self._folder.other_settings(encoder.version, encoder.about)
        for line in others if others and encoder.version == self.version else ():
            display.note(f"{line}; that is used, and `ccl verify {self.folder} --repair` mends the file")
        return encoder

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
        with closing(self.frozen(version)) as encoder, found_images(images) as found:
            read = read_images(encoder, found, max_bad=max_bad)
        return (read.rows.numpy(), list(read.names)) if return_paths else read.rows.numpy()

    def encode_file(
        self,
        images: Images,
        path: str | Path,
        *,
        version: int | None = None,
        max_bad: float = MAX_BAD,
        display: Observer = SILENT,
    ) -> None:
        """Write features with the paths of the images to a .npz, .csv or .parquet file; lists what was left out."""
        path = Path(path)
        feature_files.check_features_target(path)
        with closing(self._opened(version, display)) as encoder, found_images(images, display) as found:
            read = read_images(encoder, found, path, max_bad, display)
            feature_files.write_features(path, read.rows, read.names, encoder.version, encoder.description)
        what = f"{counted(len(read.rows), 'image')}, {read.rows.shape[1]} features each"
        display.note(f"{what}, read by version {encoder.version}: {path}")

    def encode_parts(
        self,
        images: Images,
        folder: str | Path,
        *,
        shard: str = "1/1",
        part_images: int = feature_files.PART_IMAGES,
        version: int | None = None,
        display: Observer = SILENT,
    ) -> None:
        """Write features in parts into a folder, those that are missing of the I-th of N shares: `shard` "I/N"."""
        share, out = feature_files.parse_share(shard), Path(folder)
        with closing(self._opened(version, display)) as encoder, found_images(images, display) as found:
            manifest = feature_files.Manifest.of(encoder, found.source, part_images)
            feature_files.begin(out, manifest)
            written = list(
                feature_files.write_parts(out, manifest, encoder, found, share, display.loading, display.note)
            )
            display.run_ends()
        num_rows, num_bad = (sum(part[kind] for part in written) for kind in (0, 1))
        left_out = f", {num_bad:,} left out as not usable (part-….bad_images.csv)" if num_bad else ""
        here = f"{counted(len(written), 'part')} with {counted(num_rows, 'image')}"
        display.note(f"{here} written by version {encoder.version}{left_out}")
        num_done = manifest.num_parts - len(feature_files.missing_parts(out, manifest))
        display.note(f"{num_done} of {manifest.num_parts} parts are done: {out}")

    def probe(
        self,
        labelled: Images,
        labels: Sequence[Any] | None = None,
        *,
        save: bool = True,
        path: str | Path | None = None,
        version: int | None = None,
        max_bad: float = MAX_BAD,
        display: Observer = SILENT,
    ) -> "ProbeReport":
        """Fit a classifier on labelled images; what it is worth beside the start, raw pixels and HOG.

        They are a folder of class folders, or any images with a label each, of which every fifth of a class is held
        out. Saved, here or at `path`, it is what `predict` uses, with a picture of its mistakes beside it.
        """
        from ccl.continual_encoder import probe_classifiers
        from ccl.continual_encoder.folder_page import write_confusion

        name = name_of(labelled)
        with ExitStack() as held:
            if labels is not None:
                source = held.enter_context(found_images(labelled, display)).source
                if len(labels) != len(source):
                    raise UserError(f"{counted(len(labels), 'label')} for {counted(len(source), 'image')}")
                classes, numbers = np.unique(np.asarray(labels).tolist(), return_inverse=True)
                dataset = labelled_dataset(name, source, numbers, [str(value) for value in classes.tolist()])
            elif not isinstance(labelled, str | Path):
                raise UserError("labels are missing")
            elif not Path(labelled).is_dir():
                raise UserError(f"{labelled} is not a folder")
            else:
                dataset = scan(Path(labelled))
            encoder = held.enter_context(closing(self._opened(version, display)))
            start = held.enter_context(closing(frozen_start(self.folder)))
            out = Path(path) if path else probe_classifiers.default_path(self.folder, name, encoder.version)
            check_target(out, [probe_classifiers.SUFFIX], "a classifier")
            for line in dataset.notes:
                display.note(line)
            with listing_bad_images(out):
                report = probe_classifiers.probe(encoder, dataset, start, display.loading, max_bad)
            display.run_ends()
        tell_left_out(report.skipped, out if save else None, display)
        if save:
            probe_classifiers.save_classifier(report.classifier, out)
            if report.confusion is not None:
                write_confusion(picture := out.with_suffix(".confusion.png"), report.class_names, report.confusion)
                display.note(f"which classes are taken for which: {picture}")
            display.note(f"the classifier: {out}")
        return report

    def predict(
        self,
        images: Images,
        *,
        path: str | Path | None = None,
        classifier: str | Path | None = None,
        any_version: bool = False,
        version: int | None = None,
        max_bad: float = MAX_BAD,
        display: Observer = SILENT,
    ) -> list[tuple[str, str, float]]:
        """Path, class and confidence of each image, by the newest classifier of the version; `path`: also as .csv.

        Unusable files, up to `max_bad` percent, are left out. `any_version` takes the newest classifier of another
        version where this one has none.
        """
        from ccl.continual_encoder import probe_classifiers

        out = None if path is None else Path(path)
        if out is not None:
            check_target(out, [".csv"], "a table of predictions")
        with closing(self._opened(version, display)) as encoder:
            named = classifier or probe_classifiers.newest(self.folder, encoder, any_version)
            fitted = probe_classifiers.load_classifier(named)
            probe_classifiers.check_fits(encoder, fitted, any_version)  # before the images are read
            with found_images(images, display) as found:
                read = read_images(encoder, found, out, max_bad, display)
            answers = probe_classifiers.predict(encoder, fitted, read.rows, any_version)
            if fitted.about.fingerprint != encoder.fingerprint:
                then = f"version {fitted.about.version}"
                display.note(f"the classifier was fitted on {then}: what it was worth there says nothing here")
        rows = [(name, answer.name, answer.confidence) for name, answer in zip(read.names, answers, strict=True)]
        if out is not None:
            write_csv(out, ["path", "class", "confidence"], [(*row[:2], round(row[2], 6)) for row in rows])
        display.note(f"{counted(len(rows), 'image')} classified by {named}{'' if out is None else f': {out}'}")
        return rows

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
        display: Observer = SILENT,
    ) -> "list[Answer]":
        """The k images most like each query, best first; written as a sheet to look at, .html.

        With None for the images it searches among `features`, a file or a folder of parts.
        """
        from ccl.continual_encoder import searching

        if (images is None) == (features is None):
            raise UserError("name where to search: either IMAGES or --features FILE.npz")
        out = Path(path)
        check_target(out, [".html"], "a contact sheet")
        with ExitStack() as held:
            encoder = held.enter_context(closing(self._opened(version, display)))
            asked = held.enter_context(found_images(queries, display))
            searching.check_sheet_size(len(asked.source), k)
            files: list[bytes] = []
            read = read_images(
                encoder, asked, out, max_bad, display, lambda rows, some: files.extend(map(searching.shown_file, some))
            )
            query = searching.Collection(read.rows, read.names, lambda at: files[at] or read.source.encoded(at))
            if images is None:
                collection = searching.stored_collection(str(features), encoder)
            else:
                found, best = held.enter_context(found_images(images, display)), searching.Nearest(query.rows, k)
                there = read_images(encoder, found, out, max_bad, display, best.take)
                collection = searching.Collection(
                    there.rows, there.names, lambda at: best.files.get(at) or there.source.encoded(at)
                )
            answers = searching.find_similar(query, collection, k)
            searching.write_sheet(out, answers, f"Most like {name_of(queries)}, by version {encoder.version}")
        missing = sum(image.content is None for answer in answers for image, _ in answer.hits)
        if missing:
            gone = f"{counted(missing, 'image')} can't be found where {features} says"
            display.note(f"{gone}; run this in the folder where it was made")
        display.note(f"the sheet to look at: {out}")
        return answers

    def health(self, version: int | None = None) -> dict[str, Any]:
        """A version compared with the one before on the remembered images, as plain values, with a verdict."""
        steps = self._folder.version(version).about["steps"]
        if not steps:
            raise UserError(f"version 0 of {self.folder} is what it started from: there is nothing to compare it with")
        step = steps[-1]
        judged = {name: step[name] for name in ("verdict", "accuracy", "gains")}
        return judged | (step["health"] or {})

    def export(
        self,
        path: str | Path,
        *,
        images: Images | None = None,
        version: int | None = None,
        display: Observer = SILENT,
    ) -> "Exported":
        """Write the encoder as .safetensors, .pt2 or .onnx with its card, checked against the original on the images.

        A path without a suffix is a folder in the hub's layout. Without images it is checked on those it remembers,
        else on pictures that ccl draws.
        """
        from ccl.continual_encoder.exporting import check_export_target, write_export

        check_export_target(out := Path(path))
        with closing(self._opened(version, display)) as encoder, ExitStack() as held:
            source: ImageSource | None = None
            if images is not None:
                found = held.enter_context(found_images(images, display))
                with listing_bad_images(out):
                    some = collected(found, encoder.resize, progress=display.loading)
                display.run_ends()
                tell_left_out(some.skipped, None, display)
                source = some.source
            elif len(memory := self._folder.memory_of(encoder.version)):
                source = EncodedSource(memory.files, memory.ids)
            exported, card = write_export(encoder, out, source)
        display.note(f"version {encoder.version} as {exported.format}: {out}, {exported.checked}")
        display.note(f"what it is and how to load it: {card}")
        return exported

    def rollback(self, to: int | None = None) -> int:
        """Make an older version current, by default the newest good one before the current one.

        What was learned since may be learned anew.
        """
        from ccl.continual_encoder.folder_page import write_page

        goal = roll_back(self._folder, to)
        write_page(self._folder)
        return goal

    def promote(self, version: int | None = None) -> int:
        """Make a version current that a drop made and that was refused, by default the newest such candidate."""
        from ccl.continual_encoder.folder_page import write_page

        goal = promote(self._folder, version)
        write_page(self._folder)
        return goal

    def pin(self, version: int | None) -> None:
        """Use this version whatever is learned meanwhile; None: the current one, always."""
        from ccl.continual_encoder.folder_page import write_page

        pin_version(self._folder, version)
        write_page(self._folder)
