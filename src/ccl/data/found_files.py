"""The image files that a user's inputs name: folders of any layout, globs, archives, lists of paths, single files."""

import fnmatch
import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ccl.data.archives import SUFFIXES as ARCHIVE_SUFFIXES
from ccl.data.archives import is_archive_name, unpack
from ccl.data.dataset import Progress
from ccl.data.decoding import SUFFIXES, is_image_name
from ccl.data.folders import entries, is_dir, is_image
from ccl.errors import UserError

_MAX_LINE = 1 << 16  # bytes; longer than any path
_KNOWN = (
    f"images end in {', '.join(sorted(SUFFIXES))}; archives in {', '.join(ARCHIVE_SUFFIXES)}; "
    "shards are given as shards:PATTERN"
)


class FoundFiles:
    """Files that are called like images, input by input and sorted within each; nothing of them is read yet."""

    def __init__(self, scratch: Path, progress: Progress | None = None) -> None:
        self.names: list[str] = []  # for people: as given and found, or "archive.zip::inner/path.png"
        self.paths: list[str] = []  # where they lie, absolute
        self._endings: Counter[str] = Counter()  # of files that are skipped
        self._archives: list[str] = []  # that lie in folders or in other archives
        self._num_special = 0
        self._workshop, self._progress, self._here = scratch, progress, os.getcwd()

    def add(self, text: str, bases: Sequence[str] = ("",), *, is_listed: bool = False) -> None:
        """What an input names, below the first of the bases where there is something; refuses one without images."""
        num_images, num_others = len(self.names), self._num_skipped()
        places = [os.path.join(base, os.path.expanduser(text)) for base in bases]
        if there := [place for place in places if os.path.lexists(place)]:
            self._take(there[0], is_listed)
        elif glob.has_magic(text):
            self._take_matches(text, places)
        else:
            raise UserError(f"there is no file or folder {text!r}; it was looked for in {self._here!r}")
        if len(self.names) == num_images:
            others = self._num_skipped() - num_others
            raise UserError(f"{text!r} holds no images, and {others} other files; {_KNOWN}")

    def notes(self) -> tuple[str, ...]:
        """What was skipped, a line for each kind."""
        lines = []
        if self._endings:
            kinds = ", ".join(f"{ending!r} {count}" for ending, count in self._endings.most_common(5))
            lines.append(f"{self._endings.total()} files are not images by their names and are skipped: {kinds}")
        if self._archives:
            lines.append(
                f"{len(self._archives)} archives in folders or in archives are skipped, the first is "
                f"{self._archives[0]!r}; give them by their names, those in archives unpacked"
            )
        if self._num_special:
            lines.append(f"{self._num_special} links that lead nowhere, devices and sparse files are skipped")
        return tuple(lines)

    def _num_skipped(self) -> int:
        return self._endings.total() + len(self._archives) + self._num_special

    def _take(self, path: str, is_listed: bool) -> None:
        if os.path.isdir(path):
            for entry in _below(path):
                if is_image(entry):
                    self._keep(entry.path, entry.path)
                elif not is_dir(entry):
                    self._skip(entry.path)
        elif not os.path.isfile(path):
            raise UserError(f"{path!r} is neither a file nor a folder")
        elif is_image_name(path):
            self._keep(path, path)
        elif is_archive_name(path):
            self._take_archive(path)
        elif is_listed or _is_binary(path):
            raise UserError(f"{path!r} is not an image, archive or list of paths; {_KNOWN}")
        else:
            self._take_list(path)

    def _take_archive(self, path: str) -> None:
        unpacked = unpack(Path(path), self._workshop, self._progress)
        for member, file in zip(unpacked.members, unpacked.paths, strict=True):
            self._keep(f"{path}::{member}", file)
        for member in unpacked.others:
            self._skip(f"{path}::{member}")
        self._num_special += unpacked.num_special

    def _take_list(self, path: str) -> None:
        """Each line is an input of its own, below the folder of the list or below the current one."""
        for number, line in _lines(path):
            try:
                self.add(line, (os.path.dirname(path), ""), is_listed=True)
            except UserError as error:
                raise UserError(f"list of paths {path!r}, line {number}: {error}") from error

    def _take_matches(self, pattern: str, places: Sequence[str]) -> None:
        """Other than files that are named, matches may be anything: what is not an image is skipped."""
        found = next(filter(None, map(matches, places)), None)
        if found is None:
            raise UserError(f"nothing matches {pattern!r}; it was looked for in {self._here!r}")
        folder = None
        for path in found:
            if folder is not None and path.startswith(os.path.join(folder, "")):
                continue  # it came with the folder
            if os.path.isdir(path):
                folder = path
            if os.path.isdir(path) or (os.path.isfile(path) and (is_image_name(path) or is_archive_name(path))):
                self._take(path, is_listed=True)
            else:
                self._skip(path)

    def _keep(self, name: str, path: str) -> None:
        self.names.append(name)
        self.paths.append(os.path.join(self._here, path))  # join leaves absolute names alone

    def _skip(self, name: str) -> None:
        if is_image_name(name):  # and yet not a file
            self._num_special += 1
        elif is_archive_name(name):
            self._archives.append(name)
        else:
            self._endings[os.path.splitext(name)[1].lower()] += 1


def _below(folder: str) -> Iterator[os.DirEntry[str]]:
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
    """What fits a pattern of *, ?, […] and ** (folders at any depth), sorted; hidden things fit only by name.

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
        below = (entry.path for folder in folders for entry in _below(folder or os.curdir) if is_dir(entry))
        return [*folders, *map(_shortened, below)]
    return [
        os.path.join(folder, entry.name)
        for folder in folders
        for entry in entries(folder or os.curdir)
        if fnmatch.fnmatchcase(entry.name, part)
    ]


def _shortened(path: str) -> str:
    return path.removeprefix(os.path.join(os.curdir, ""))


def _is_binary(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return b"\0" in file.read(_MAX_LINE)
    except OSError as error:
        raise UserError(f"can't read {path!r}: {error.strerror}") from error


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines of a list with their numbers, whatever their encoding; blank ones and # comments are skipped."""
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), start=1):
            text = line.removeprefix(b"\xef\xbb\xbf").strip()  # some editors put a mark before the first
            if text and not text.startswith(b"#"):
                yield number, os.fsdecode(text)
