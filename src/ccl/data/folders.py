"""Folders of images: their layouts as datasets, all that lies below them, and globs.

A dataset is train/<class>/… with val or test, or <class>/… alone, or one flat folder without labels.
"""

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from ccl.data.dataset import Dataset, labelled_dataset
from ccl.data.decoding import SUFFIXES, is_image_name
from ccl.data.image_sources import FileSource
from ccl.errors import UserError, counted

_TEST_FOLDERS = ("val", "test")

# Strings: with a Path object each, a million files took 9 s instead of 3, and 200 MB more.
Listing = dict[str, list[str]]  # class -> its images, both sorted by name


def scan(folder: Path) -> Dataset:
    """The dataset in a folder, in whichever of the three layouts it has; nothing is decoded.

    Without a test part every fifth image of each class, by sorted name, is held out for the test.
    """
    try:
        is_there = folder.is_dir()
    except OSError as error:  # it lies in a folder that may not be entered
        raise UserError(f"can't open {folder}: {error.strerror}") from error
    if not is_there:
        raise UserError(f"no folder {folder}; set --data-root or CCL_DATA to the folder above it")
    names = {entry.name for entry in entries(folder) if is_dir(entry)}
    has_train, test_name = "train" in names, next((name for name in _TEST_FOLDERS if name in names), None)
    if test_name is not None and not has_train:
        raise UserError(f"{folder} has {test_name}/ but no train/")
    inner = folder / "train" if has_train else folder
    train, notes = _classes(inner)
    if not train:
        if test_name is not None:
            notes = (*notes, f"{folder}: train/ has no class folders, so {test_name}/ is skipped")
        paths = [entry.path for entry in entries(inner) if is_image(entry)]
        if not paths:
            raise UserError(f"{inner} holds no images ({', '.join(sorted(SUFFIXES))})")
        return Dataset(folder.resolve().name, FileSource(paths), None, None, None, (), "", notes=notes)
    test: Listing = {}
    if test_name is not None:
        test, test_notes = _classes(folder / test_name)
        if not test:
            raise UserError(f"{folder / test_name} has no class folders with images")
        notes = (*notes, *test_notes)
    elif has_train:
        raise UserError(f"{folder} has train/ but neither val/ nor test/; without train/ a part would be held out")
    classes = sorted(train.keys() | test.keys())
    paths = [path for part in (train, test) for name in classes for path in part.get(name, [])]
    counts = [len(part.get(name, [])) for part in (train, test) for name in classes]
    labels = np.repeat(np.tile(np.arange(len(classes)), 2), counts)
    is_test = np.arange(len(paths)) >= sum(counts[: len(classes)])
    return labelled_dataset(folder.resolve().name, FileSource(paths), labels, classes, is_test, notes=notes)


def _classes(folder: Path) -> tuple[Listing, tuple[str, ...]]:
    """Folders with images below them, and a line for each thing that is skipped."""
    listing: Listing = {}
    empty, loose = [], 0
    for entry in entries(folder):
        if is_dir(entry):
            paths = [inner.path for inner in below(entry.path) if is_image(inner)]
            if paths:
                listing[os.fsencode(entry.name).decode(errors="backslashreplace")] = paths  # it is written as text
            else:
                empty.append(entry.name)
        else:
            loose += is_image(entry)
    notes = []
    if empty:
        notes.append(f"{folder}: folders without images are skipped: {', '.join(empty[:5])}")
    if listing and loose:
        notes.append(f"{folder}: {counted(loose, 'image')} beside the class folders left out")
    return listing, tuple(notes)


def is_hidden(name: str) -> bool:
    """Whether a file or folder holds no user's images: hidden by its name, or what macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """The entries of a folder, by name, without hidden ones."""
    try:
        with os.scandir(folder) as found:
            return sorted((entry for entry in found if not is_hidden(entry.name)), key=attrgetter("name"))
    except OSError as error:
        raise UserError(f"can't list {folder}: {error.strerror}") from error


def is_image(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link to one, that is called like an image."""
    if not is_image_name(entry.name):
        return False
    try:
        return entry.is_file()
    except OSError:  # a link to itself, or to where one may not look: as one that leads nowhere
        return False


def is_dir(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder; a link to itself is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def below(folder: str) -> Iterator[os.DirEntry[str]]:
    """All that lies below a folder, sorted, each folder before what is in it.

    Links are followed, and each folder is entered once, by whatever name comes first, so that loops end.
    """
    entered = {_identity(folder)}
    waiting = entries(folder)[::-1]
    while waiting:
        entry = waiting.pop()
        if not is_dir(entry):
            yield entry
        elif (identity := _identity(entry.path)) not in entered:
            entered.add(identity)
            yield entry
            waiting.extend(reversed(entries(entry.path)))


def _identity(folder: str) -> tuple[int, int]:
    try:
        about = os.stat(folder)
    except OSError as error:
        raise UserError(f"can't open {folder!r}: {error.strerror}") from error
    return about.st_dev, about.st_ino


def matches(pattern: str) -> list[str]:
    """The paths that match *, ?, […] and ** (folders at any depth), sorted; hidden ones match only by name.

    Differs from `glob`, which follows each link in a loop forty times, and two links two to the power of forty.
    """
    found = [os.sep if pattern.startswith(os.sep) else ""]
    parts = [part for part in pattern.split(os.sep) if part]
    while parts and parts[-1] == "**":  # a folder brings all that is below it anyway
        parts.pop()
    for part in parts:
        found = _fitting(found, part)
    return sorted({path or os.curdir for path in found}, key=lambda path: path.split(os.sep))


def _fitting(folders: Sequence[str], part: str) -> list[str]:
    if not glob.has_magic(part):
        return [path for folder in folders if os.path.lexists(path := os.path.join(folder, part))]
    folders = [folder for folder in folders if os.path.isdir(folder or os.curdir)]
    if part == "**":
        inner = (entry.path for folder in folders for entry in below(folder or os.curdir) if is_dir(entry))
        return [*folders, *(path.removeprefix(os.path.join(os.curdir, "")) for path in inner)]
    return [
        os.path.join(folder, entry.name)
        for folder in folders
        for entry in entries(folder or os.curdir)
        if fnmatch.fnmatchcase(entry.name, part)
    ]
