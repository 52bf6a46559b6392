"""Features of images in a file (.npz, .csv or .parquet), or in a folder of parts that several processes may write.

A folder of parts; one that is there and whole is done, and memory holds one at a time:

    manifest.json             which images and which encoder: equal for all who write here
    part-000017.npz           features of images 17 · part_images … of the manifest, as `write_features` makes it
    part-000017.bad_images.csv   what of them was left out, where there is something
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccl.atomic_files import check_target, csv_text, make_folder, replacing, write_file
from ccl.continual_encoder.frozen_encoder import FrozenEncoder
from ccl.data import MAX_BAD, Found, ImageSource, write_bad_images
from ccl.errors import UserError, require
from ccl.sealed_json import seal, unseal

MANIFEST = "manifest.json"
PART_IMAGES = 10_000


class NotFeaturesError(UserError):
    """A file that can be read, and is not one of features, or no longer."""


@dataclass(frozen=True)
class FeatureFile:
    """The content of a .npz file of features."""

    rows: Tensor  # (N, F) float32
    names: tuple[str, ...]  # of the images, N
    version: int
    about: dict[str, Any]  # as `write_features` was given


def check_features_target(path: Path) -> None:
    """Refuse, before any image is read, a file that could not be written."""
    check_target(path, _WRITERS, "a file of features")
    if path.suffix == ".parquet":
        require(["pyarrow.parquet"], "parquet", "a .parquet file")


def write_features(
    path: str | Path, rows: Tensor, names: Sequence[str], version: int, about: Mapping[str, Any]
) -> None:
    """Rows (N, F) and the N images' names, in the format that the suffix says; a reader never meets half a file.

    .npz: `features`, `paths`, `version` and `about` (JSON). .csv: path, version, f0, f1, … .parquet: path, version and
    `features`, a list of F numbers; `about` is in the metadata of its schema.

    >>> ccl.write_features("features.npz", torch.zeros(2, 4), ["a.jpg", "b.jpg"], version=1, about={})
    >>> ccl.read_features("features.npz").names
    ('a.jpg', 'b.jpg')
    """
    path = Path(path)
    if rows.ndim != 2 or len(rows) != len(names):
        raise ValueError(f"{tuple(rows.shape)} rows do not fit {len(names)} names")
    check_features_target(path)
    values = np.ascontiguousarray(rows.detach().cpu().numpy(), dtype=np.float32)
    with replacing(path) as unfinished:
        _WRITERS[path.suffix](unfinished, values, names, version, json.dumps(dict(about)))


def _write_npz(path: Path, rows: NDArray[np.float32], names: Sequence[str], version: int, about: str) -> None:
    np.savez(path, features=rows, paths=np.array(names, dtype=np.str_), version=version, about=about)


def _write_csv(path: Path, rows: NDArray[np.float32], names: Sequence[str], version: int, about: str) -> None:
    line = f'"%s",{version},' + ",".join(["%.9g"] * rows.shape[1]) + "\n"  # nine digits give back every float32
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        file.write(",".join(["path", "version", *(f"f{number}" for number in range(rows.shape[1]))]) + "\n")
        for name, row in zip(names, rows, strict=True):
            file.write(line % (csv_text(name).replace('"', '""'), *row.tolist()))


def _write_parquet(path: Path, rows: NDArray[np.float32], names: Sequence[str], version: int, about: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    printable = [
        name.encode("utf-8", "backslashreplace").decode() for name in names
    ]  # bytes that are not text: escapes
    columns = {
        "path": pa.array(printable, pa.string()),
        "version": pa.array(np.full(len(names), version, dtype=np.int64)),
        "features": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1]),
    }
    pq.write_table(pa.table(columns).replace_schema_metadata({"ccl": about}), path)


_WRITERS: dict[str, Callable[[Path, NDArray[np.float32], Sequence[str], int, str], None]] = {
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}


def read_features(path: str | Path) -> FeatureFile:
    """A .npz file as `write_features` makes it; anything else is refused, and no code in it runs.

    >>> ccl.write_features("features.npz", torch.ones(2, 4), ["a.jpg", "b.jpg"], version=1, about={})
    >>> ccl.read_features("features.npz").rows.shape
    torch.Size([2, 4])
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(item.file_size for item in archive.infolist()) > path.stat().st_size:
                raise ValueError("it is compressed, as write_features never does")
        with np.load(path, allow_pickle=False) as arrays:
            rows, names, version = arrays["features"], arrays["paths"], arrays["version"]
            about = json.loads(str(arrays["about"]))
        if rows.dtype != np.float32 or rows.ndim != 2 or names.shape != rows.shape[:1] or names.dtype.kind != "U":
            raise ValueError(f"features {rows.dtype} {rows.shape} and paths {names.dtype} {names.shape}")
        if version.shape != () or version.dtype.kind not in "iu" or not isinstance(about, dict):
            raise ValueError("its version is not a number, or its description not a JSON object")
        if not np.isfinite(rows).all():
            raise ValueError("features contain nan or infinity")
    except Exception as error:  # NumPy and zipfile raise many kinds for broken files
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"{path} can't be read: {error.strerror}") from error
        why = " ".join(str(error).split())[:160]
        raise NotFeaturesError(f"{path} is not a file of features (.npz, by ccl encode): {why}") from error
    return FeatureFile(torch.from_numpy(rows), tuple(names.tolist()), int(version), about)


@dataclass(frozen=True)
class Manifest:
    """The manifest of a folder of features: what all its parts share."""

    num_images: int  # that are named, also those that turn out not to be usable
    part_images: int
    images: str  # a fingerprint of which images, in which order
    about: dict[str, Any]  # of the encoder, as `FrozenEncoder.description`

    @property
    def num_parts(self) -> int:
        return -(-self.num_images // self.part_images)

    def about_part(self, number: int) -> dict[str, Any]:
        """What a part says of itself: no other can be taken for it."""
        return {**self.about, "images": self.images, "part": number}

    @classmethod
    def of(cls, encoder: FrozenEncoder, source: ImageSource, part_images: int = PART_IMAGES) -> "Manifest":
        """The one for these images."""
        state = hashlib.sha256()
        for part in source.content_parts():
            state.update(len(part).to_bytes(8, "little"))
            state.update(part)
        return cls(len(source), part_images, state.hexdigest()[:16], encoder.description)


def parse_share(text: str) -> tuple[int, int]:
    """ "3/16" as (2, 16): which of how many, counted from 0."""
    first, _, last = text.partition("/")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise UserError(f"--shard {text!r} is not one of 1/N … N/N, as 3/16 is the third of sixteen")
    return int(first) - 1, int(last)


def begin(folder: Path, manifest: Manifest) -> None:
    """Claim a folder for these images and this encoder; refuses one that holds the features of others."""
    if folder.suffix in _WRITERS or folder.is_file():
        raise UserError(f"{folder}: with --shard features are written as parts into a folder; name one")
    path = folder / MANIFEST
    if path.exists():
        kept = asdict(read_manifest(folder))
        if wrong := [name for name, value in asdict(manifest).items() if kept[name] != value]:
            raise UserError(
                f"{folder} holds parts of others (another {wrong[0]} in {MANIFEST}); name another folder, "
                "or give the same images, version and --part-images"
            )
    elif folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):  # hidden: of a kill
        raise UserError(f"{folder} is not empty and has no {MANIFEST}; name another folder")
    else:
        make_folder(folder)
        # Processes that begin at one time write the same.
        write_file(path, seal(asdict(manifest)))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder of features; refuses any other folder."""
    try:
        content = (folder / MANIFEST).read_bytes()
        # Of an earlier ccl it is not sealed.
        manifest = Manifest(**unseal(content) if b"sha256" in content else json.loads(content))
        if not (isinstance(manifest.about, dict) and min(manifest.num_images, manifest.part_images) >= 1):
            raise ValueError("its numbers are not positive, or its description not a JSON object")
        if not isinstance(manifest.images, str) or manifest.num_parts > 10_000_000:
            raise ValueError("its images are not a fingerprint, or its parts too many to be true")
    except OSError as error:
        raise UserError(f"{folder / MANIFEST} can't be read: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        why = " ".join(str(error).split())[:160]
        raise UserError(f"{folder} is not a folder of features (by ccl encode --shard): {why}") from error
    return manifest


def part_path(folder: Path, number: int) -> Path:
    """The path of a part."""
    return folder / f"part-{number:06d}.npz"


def write_parts(
    folder: Path,
    manifest: Manifest,
    encoder: FrozenEncoder,
    images: Found,
    share: tuple[int, int] = (0, 1),
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], object] = lambda line: None,
) -> Iterator[tuple[int, int]]:
    """Write the parts of a share (this one of so many) that are missing or not whole; of each its rows and bad images.

    `note` is given a line for each that was not whole.
    """
    numbers = range(share[0], manifest.num_parts, share[1])
    for done, number in enumerate(numbers, start=1):
        path = part_path(folder, number)
        if not _is_done(folder, manifest, number, note):
            start = number * manifest.part_images
            positions = torch.arange(start, min(start + manifest.part_images, len(images.source)))
            # By the size of a full part: in a last one that is small, a single image could be too many.
            most_bad = MAX_BAD * manifest.part_images / len(positions)
            found = encoder.read(images.subset(positions), max_bad=most_bad)
            if found.skipped:
                write_bad_images(path.with_suffix(".bad_images.csv"), found.skipped)
            write_features(path, found.rows, found.names, encoder.version, manifest.about_part(number))
            yield len(found.rows), len(found.skipped)
        if progress is not None:
            progress(done, len(numbers))


def read_part(folder: Path, manifest: Manifest, number: int) -> FeatureFile:
    """A part, every byte of it checked; refuses one of other images or of another encoder."""
    found = read_features(path := part_path(folder, number))
    if found.about not in (manifest.about_part(number), manifest.about):  # of an earlier ccl: as the manifest
        raise NotFeaturesError(f"{path} is a part of other features")
    return found


def _is_done(folder: Path, manifest: Manifest, number: int, note: Callable[[str], object]) -> bool:
    try:
        return part_path(folder, number).exists() and bool(read_part(folder, manifest, number))
    except NotFeaturesError as error:
        note(f"{error}; it is written again")
        return False


def missing_parts(folder: Path, manifest: Manifest) -> list[int]:
    """The parts that are not there yet, or cut; only the end of each is read."""
    return [number for number in range(manifest.num_parts) if not zipfile.is_zipfile(part_path(folder, number))]


def read_parts(folder: Path) -> FeatureFile:
    """All parts as one; refuses a folder that is not complete."""
    manifest = read_manifest(folder)
    if missing := missing_parts(folder, manifest):
        raise UserError(
            f"{folder}: {len(missing)} of {manifest.num_parts} parts are missing or cut, the first is "
            f"{part_path(folder, missing[0]).name}; run ccl encode for them first"
        )
    parts = [read_part(folder, manifest, number) for number in range(manifest.num_parts)]
    names = tuple(name for part in parts for name in part.names)
    return FeatureFile(torch.cat([part.rows for part in parts]), names, parts[0].version, manifest.about)
