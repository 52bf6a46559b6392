"""What a version of an encoder folder is used for: features, a classifier, predictions, a search, an export."""

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from ccl.continual_encoder import classifiers
from ccl.continual_encoder.exporting import Exported, write_export
from ccl.continual_encoder.folder import EncoderFolder
from ccl.continual_encoder.frozen import frozen, start
from ccl.continual_encoder.images import bad_images_beside, listing_bad_images, read
from ccl.continual_encoder.judge import ProbeReport, probe
from ccl.continual_encoder.searching import Answer, Collection, check_sheet_target, find, write_sheet
from ccl.data import EncodedSource, Images, ImageSource, collected, find_images, load_dataset
from ccl.errors import UserError


def encode_images(
    state: EncoderFolder, images: Images, version: int | None, *, may_skip: bool
) -> tuple[NDArray[np.float32], list[str]]:
    """Features (N, F) and the path of each row; unusable files, up to 5 %, may be left out."""
    with TemporaryDirectory() as scratch, closing(frozen(state.path, version)) as encoder:
        found = read(encoder, images, Path(scratch), may_skip=may_skip)
        return found.rows.numpy(), list(found.names)


def probe_folder(
    state: EncoderFolder, labelled: Path, version: int | None, max_bad: float, *, save: bool
) -> ProbeReport:
    """A classifier on a folder of class folders, measured beside what needs no learning."""
    if not labelled.is_dir():
        raise UserError(f"{labelled} is not a folder")
    with closing(frozen(state.path, version)) as encoder, closing(start(state.path)) as first:
        path = classifiers.default_path(state.path, labelled, encoder.version)
        with listing_bad_images(bad_images_beside(path)):
            dataset = load_dataset("folder", labelled, resize=encoder.resize, max_bad=max_bad)
        report = probe(encoder, dataset, first)
        if save:
            classifiers.save(report.classifier, path)
    return report


def predict_images(
    state: EncoderFolder, images: Images, version: int | None, classifier: Path | None, *, any_version: bool
) -> list[tuple[str, str, float]]:
    """Path, class and confidence of each image, by this classifier, else by the newest that fits."""
    with TemporaryDirectory() as scratch, closing(frozen(state.path, version)) as encoder:
        path = classifiers.newest(state.path, encoder, any_version) if classifier is None else classifier
        fitted = classifiers.load(path)
        classifiers.check_fits(encoder, fitted, any_version)
        found = read(encoder, images, Path(scratch), may_skip=True)
        answers = classifiers.predict(encoder, fitted, found.rows, any_version)
    return [(name, answer.name, answer.confidence) for name, answer in zip(found.names, answers, strict=True)]


def search_images(
    state: EncoderFolder, queries: Images, images: Images, path: Path, k: int, version: int | None
) -> list[Answer]:
    """The k images most like each query, best first, also written as a sheet."""
    check_sheet_target(path)
    with TemporaryDirectory() as scratch, closing(frozen(state.path, version)) as encoder:
        asked, searched = (
            Collection(found.rows, found.names, found.source.encoded)
            for found in (read(encoder, some, Path(scratch)) for some in (queries, images))
        )
        answers = find(asked, searched, k)
        write_sheet(path, answers, f"Most alike, by version {encoder.version}")
        return answers


def export_version(state: EncoderFolder, path: Path, images: Images | None, version: int | None) -> Exported:
    """Write the encoder with its card, checked on the images, else on those it remembers."""
    with TemporaryDirectory() as scratch, closing(frozen(state.path, version)) as encoder:
        if images is None:
            memory = state.memory_of(encoder.version)
            source: ImageSource = EncodedSource(memory.files, memory.ids)
        else:
            source = collected(find_images(images, Path(scratch)), encoder.resize).source
        return write_export(encoder, path, source if len(source) else None)[0]
