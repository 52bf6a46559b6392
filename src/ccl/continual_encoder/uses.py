"""What a version of an encoder folder is used for: one function a use, for `ContinualEncoder` and for the commands.

Each opens the version, reads every image once, writes what is asked for, and tells `display` in a line what came of it.
"""

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ccl.atomic_files import check_target
from ccl.continual_encoder import features
from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.frozen import Features, FrozenEncoder, frozen, frozen_start
from ccl.data import (
    MAX_BAD,
    BadImage,
    Dataset,
    EncodedSource,
    Found,
    Images,
    ImageSource,
    TooManyBadError,
    collected,
    find_images,
    write_bad_images,
)
from ccl.data.dataset import labelled_dataset
from ccl.data.folders import scan
from ccl.errors import UserError, counted
from ccl.training import Observer

if TYPE_CHECKING:  # each use loads what it needs: drawing and templates take a second
    from ccl.continual_encoder.drop import Options, Outcome
    from ccl.continual_encoder.exporting import Exported
    from ccl.continual_encoder.judge import ProbeReport
    from ccl.continual_encoder.searching import Answer

CHUNK = 2_000  # images of an endless stream that become one step
_SILENT = Observer()


def learn(
    folder: Path,
    images: Images,
    options: "Options",
    *,
    chunk: int = CHUNK,
    start: str | None = None,
    keep: Sequence[str | Path] = (),
    display: Observer = _SILENT,
) -> "list[Outcome]":
    """Take in a drop, or of a stream without boundaries every `chunk` images; an outcome for each step that this made.

    A folder that is made may start from weights, with images at `keep` for what they know.
    """
    from ccl.continual_encoder.drop import drops
    from ccl.continual_encoder.drop import learn as take_in
    from ccl.continual_encoder.pretrained_start import begin_from
    from ccl.continual_encoder.show import write_page

    if options.keep_versions < 1:
        raise UserError(f"keep_versions must be at least 1, got {options.keep_versions}")
    encoder, was_there, outcomes = EncoderFolder(folder), folder.exists(), list["Outcome"]()
    options = replace(options, name=options.name or name_of(images))
    try:
        with listing_bad_images(folder):
            if start is not None:
                begin_from(encoder, start, options.asked or {}, keep, display, options.max_bad)
            for drop in drops(encoder, images, chunk):
                outcomes.append(take_in(encoder, drop, display, options))
                if outcomes[-1].kind in ("refused", "planned"):
                    break
                write_page(encoder)
    finally:
        if options.dry_run and not was_there:
            shutil.rmtree(folder, ignore_errors=True)  # a start was made only to be measured
    return outcomes


def encode(
    folder: Path,
    images: Images,
    out: Path | None = None,
    *,
    version: int | None = None,
    max_bad: float = MAX_BAD,
    display: Observer = _SILENT,
) -> Features:
    """Features (N, F) of the usable images with their names, also written to `out` (.npz, .csv or .parquet)."""
    if out is not None:
        features.check_features_target(out)
    with closing(frozen(folder, version)) as encoder, _found(images, display) as found:
        read = _read(encoder, found, out, max_bad, display)
        if out is not None:
            features.write_features(out, read.rows, read.names, encoder.version, encoder.description)
        what = f"{counted(len(read.rows), 'image')}, {read.rows.shape[1]} features each"
        display.note(f"{what}, read by version {encoder.version}{'' if out is None else f': {out}'}")
        return read


def encode_parts(
    folder: Path,
    images: Images,
    out: Path,
    *,
    shard: str = "1/1",
    part_images: int = features.PART_IMAGES,
    version: int | None = None,
    display: Observer = _SILENT,
) -> None:
    """Write the parts of features that are missing of the I-th of N shares, `shard` "I/N", into the folder `out`."""
    share = features.parse_share(shard)
    with closing(frozen(folder, version)) as encoder, _found(images, display) as found:
        manifest = features.Manifest.of(encoder, found.source, part_images)
        features.begin(out, manifest)
        written = list(features.write_parts(out, manifest, encoder, found, share, display.loading))
        display.run_ends()
    num_rows, num_bad = (sum(part[kind] for part in written) for kind in (0, 1))
    left_out = f", {num_bad:,} left out as not usable (part-….bad_images.csv)" if num_bad else ""
    here = f"{counted(len(written), 'part')} with {counted(num_rows, 'image')}"
    display.note(f"{here} written by version {manifest.about['version']}{left_out}")
    num_done = manifest.num_parts - len(features.missing_parts(out, manifest))
    display.note(f"{num_done} of {manifest.num_parts} parts are done: {out}")


def predict(
    folder: Path,
    images: Images,
    out: Path | None = None,
    *,
    classifier: Path | None = None,
    any_version: bool = False,
    version: int | None = None,
    max_bad: float = MAX_BAD,
    display: Observer = _SILENT,
) -> list[tuple[str, str, float]]:
    """Path, class and confidence of each usable image, also written to `out` (.csv); by the newest classifier."""
    from ccl.continual_encoder import classifiers

    if out is not None:
        check_target(out, [".csv"], "a table of predictions")
    with closing(frozen(folder, version)) as encoder:
        path = classifier or classifiers.newest(folder, encoder, any_version)
        fitted = classifiers.load_classifier(path)
        classifiers.check_fits(encoder, fitted, any_version)  # before the images are read
        with _found(images, display) as found:
            read = _read(encoder, found, out, max_bad, display)
        answers = classifiers.predict(encoder, fitted, read.rows, any_version)
        if out is not None:
            classifiers.write_predictions(out, read.names, answers)
        if fitted.about.fingerprint != encoder.fingerprint:
            then = f"version {fitted.about.version}"
            display.note(f"the classifier was fitted on {then}: what it was worth there says nothing here")
    display.note(f"{counted(len(answers), 'image')} classified by {path}{'' if out is None else f': {out}'}")
    return [(name, answer.name, answer.confidence) for name, answer in zip(read.names, answers, strict=True)]


def search(
    folder: Path,
    queries: Images,
    images: Images | None,
    out: Path,
    *,
    stored: Path | None = None,
    k: int = 10,
    version: int | None = None,
    max_bad: float = MAX_BAD,
    display: Observer = _SILENT,
) -> "list[Answer]":
    """The k images most like each query, best first, among images or in `stored` features; and a sheet of them."""
    from ccl.continual_encoder import searching

    if (images is None) == (stored is None):
        raise UserError("name where to search: either IMAGES or --features FILE.npz")
    check_target(out, [".html"], "a contact sheet")
    with ExitStack() as held:
        encoder = held.enter_context(closing(frozen(folder, version)))
        asked = held.enter_context(_found(queries, display))
        searching.check_sheet_size(len(asked.source), k)
        files: list[bytes] = []
        read = _read(
            encoder, asked, out, max_bad, display, lambda rows, some: files.extend(map(searching.shown_file, some))
        )
        query = searching.Collection(read.rows, read.names, lambda at: files[at] or read.source.encoded(at))
        if images is not None:
            found, best = held.enter_context(_found(images, display)), searching.Nearest(query.rows, k)
            there = _read(encoder, found, out, max_bad, display, best.take)
            collection = searching.Collection(
                there.rows, there.names, lambda at: best.files.get(at) or there.source.encoded(at)
            )
        else:
            assert stored is not None
            collection = searching.stored_collection(stored, encoder)
        answers = searching.find_similar(query, collection, k)
        searching.write_sheet(out, answers, f"Most like {name_of(queries)}, by version {encoder.version}")
    missing = sum(image.content is None for answer in answers for image, _ in answer.hits)
    if missing:
        gone = f"{counted(missing, 'image')} can't be found where {stored} says"
        display.note(f"{gone}; run this in the folder where it was made")
    display.note(f"the sheet to look at: {out}")
    return answers


def probe(
    folder: Path,
    labelled: Images,
    labels: Sequence[Any] | None = None,
    out: Path | None = None,
    *,
    save: bool = True,
    version: int | None = None,
    max_bad: float = MAX_BAD,
    display: Observer = _SILENT,
) -> "ProbeReport":
    """A classifier on labelled images, measured beside what needs no learning: a folder of class folders, or any
    images with a label each. Saved, it is what `predict` uses, with a picture of which classes are mistaken beside it.
    """
    from ccl.continual_encoder import classifiers
    from ccl.continual_encoder.judge import probe as probed
    from ccl.continual_encoder.show import write_confusion

    if labels is None and not (isinstance(labelled, str | Path) and Path(labelled).is_dir()):
        raise UserError(f"{labelled} is not a folder" if isinstance(labelled, str | Path) else "labels are missing")
    with closing(frozen(folder, version)) as encoder, closing(frozen_start(folder)) as first, ExitStack() as held:
        out = out or classifiers.default_path(folder, name_of(labelled), encoder.version)
        check_target(out, [classifiers.SUFFIX], "a classifier")
        if labels is None:
            assert isinstance(labelled, str | Path)
            dataset = scan(Path(labelled))
        else:
            dataset = _dataset(held.enter_context(_found(labelled, display)), labels, name_of(labelled))
        for line in dataset.notes:
            display.note(line)
        with listing_bad_images(out):
            report = probed(encoder, dataset, first, display.loading, max_bad)
        display.run_ends()
    _tell_left_out(report.skipped, out if save else None, display)
    if save:
        classifiers.save_classifier(report.classifier, out)
        if report.confusion is not None:
            write_confusion(picture := out.with_suffix(".confusion.png"), report.class_names, report.confusion)
            display.note(f"which classes are taken for which: {picture}")
        display.note(f"the classifier: {out}")
    return report


def _dataset(found: Found, labels: Sequence[Any], name: str) -> Dataset:
    """Images with a label each; as of a folder, every fifth of each class is held out."""
    values = np.asarray(labels).tolist()
    if len(values) != len(found.source):
        raise UserError(f"{counted(len(values), 'label')} for {counted(len(found.source), 'image')}")
    classes, numbers = np.unique(values, return_inverse=True)
    return labelled_dataset(name, found.source, numbers, [str(value) for value in classes.tolist()])


def export(
    folder: Path,
    out: Path,
    images: Images | None = None,
    *,
    version: int | None = None,
    max_bad: float = MAX_BAD,
    display: Observer = _SILENT,
) -> "Exported":
    """Write the encoder with its card, checked against itself on the images, else on those it remembers, else drawn."""
    from ccl.continual_encoder.exporting import check_export_target, write_export

    check_export_target(out)
    with closing(frozen(folder, version)) as encoder, ExitStack() as held:
        source = remembered(folder, encoder.version)
        if images is not None:
            found = held.enter_context(_found(images, display))
            with listing_bad_images(out):
                some = collected(found, encoder.resize, progress=display.loading, max_bad=max_bad)
            display.run_ends()
            _tell_left_out(some.skipped, None, display)
            source = some.source
        exported, card = write_export(encoder, out, source)
    display.note(f"version {encoder.version} as {exported.format}: {out}, {exported.checked}")
    display.note(f"what it is and how to load it: {card}")
    return exported


def remembered(folder: Path, version: int) -> ImageSource | None:
    """The images that a version remembers; None where there are none."""
    memory = EncoderFolder(folder).memory_of(version)
    return EncodedSource(memory.files, memory.ids) if len(memory) else None


@contextmanager
def _found(images: Images, display: Observer) -> Iterator[Found]:
    """The images, not yet looked into, for as long as the context lasts: archives are unpacked."""
    with TemporaryDirectory(prefix="ccl-") as scratch:
        found = find_images(images, Path(scratch), display.loading)
        display.run_ends()
        for line in found.notes:
            display.note(line)
        yield found


def _read(
    encoder: FrozenEncoder,
    found: Found,
    out: Path | None,
    max_bad: float,
    display: Observer,
    look: Callable[[Tensor, Sequence[bytes]], None] | None = None,
) -> Features:
    """Features of the usable images; what is left out is reported, and listed beside `out`."""
    try:
        if out is None:
            read = encoder.read(found, display.loading, max_bad, look)
        else:
            with listing_bad_images(out):
                read = encoder.read(found, display.loading, max_bad, look)
    finally:
        display.run_ends()
    if not len(read.rows):
        raise UserError("none of the files is a usable image")
    _tell_left_out(read.skipped, out, display)
    return read


def _tell_left_out(skipped: Sequence[BadImage], out: Path | None, display: Observer) -> None:
    table = None if out is None else bad_images_beside(out)
    if table is not None:
        table.unlink(missing_ok=True)  # of an earlier time
    if skipped:
        where = "" if table is None else f"; all of them: {table}"
        first = " ".join(str(skipped[0]).split())  # a path may hold line breaks
        display.note(f"{len(skipped)} left out as not usable, the first is {first}{where}")
        if table is not None:
            write_bad_images(table, skipped)


def name_of(images: Images) -> str:
    """A drop's default name: the last part of its first path, or the kind of input."""
    if isinstance(images, Sequence) and not isinstance(images, str) and len(images):
        first = images[0]
        more = f" and {len(images) - 1} more" if len(images) > 1 and isinstance(first, str | Path) else ""
        return name_of(first) + more if isinstance(first, str | Path) else counted(len(images), "image")
    if isinstance(images, str | Path):
        return Path(images).resolve().name or str(images)
    return type(images).__name__


def bad_images_beside(target: Path) -> Path:
    """The table of files that are not usable images, next to the output."""
    target = target.absolute()
    return target.with_name(f"{target.name}.bad_images.csv")


@contextmanager
def listing_bad_images(target: Path) -> Iterator[None]:
    """Context manager: where too many files are not usable, lists all of them before it refuses."""
    try:
        yield
    except TooManyBadError as error:
        write_bad_images(table := bad_images_beside(target), error.bad)
        allowed = math.ceil(error.share)
        raise UserError(f"{error}; all are listed in {table}; --max-bad {allowed} leaves them out") from error
