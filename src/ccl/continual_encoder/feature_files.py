"""Features in a file: .npz, .csv or .parquet, one row per image with its path, and the version that read them."""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccl.atomic_files import replacing
from ccl.continual_encoder.output_checks import check_target
from ccl.errors import UserError, require


@dataclass(frozen=True)
class FeatureFile:
    """What a .npz file of features holds."""

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
            file.write(line % (name.replace('"', '""'), *row.tolist()))


def _write_parquet(path: Path, rows: NDArray[np.float32], names: Sequence[str], version: int, about: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "path": pa.array([printable(name) for name in names], pa.string()),
        "version": pa.array(np.full(len(names), version, dtype=np.int64)),
        "features": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1]),
    }
    pq.write_table(pa.table(columns).replace_schema_metadata({"ccl": about}), path)


def printable(name: str) -> str:
    """A file's name as text: bytes that are none become escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


_WRITERS: dict[str, Callable[[Path, NDArray[np.float32], Sequence[str], int, str], None]] = {
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
FEATURE_SUFFIXES = tuple(_WRITERS)


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
        why = " ".join(str(error).split())[:160]
        raise UserError(f"{path} is not a file of features (.npz, by ccl encode): {why}") from error
    return FeatureFile(torch.from_numpy(rows), tuple(names.tolist()), int(version), about)
