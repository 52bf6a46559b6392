"""Parquet files with a column of images: structs {bytes, path}, as Hugging Face datasets have them, or plain bytes."""

import json
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from ccl.data.object_store import is_remote
from ccl.data.shard_index import RECORD, Reader, Shard, ShardIndex
from ccl.data.tar_shards import LABEL_FIELDS
from ccl.errors import UserError, require

_MOST_ROWS = 100  # of a byte, where one picture comes again and again
_KEPT_GROUPS = 2  # of a reader, decompressed


def index_parquet(shard: Shard) -> ShardIndex:
    """The rows of a Parquet file in their order; refuses one without a column of images."""
    file = _opened(shard)
    _image_column(shard, file.schema_arrow)
    if not 0 <= (num_rows := file.metadata.num_rows) <= _MOST_ROWS * shard.num_bytes:
        raise UserError(
            f"shard {shard.path!r} says that it has {num_rows:,} rows in {shard.num_bytes:,} bytes; fetch it again"
        )
    records = np.zeros(num_rows, RECORD)
    records["place"] = np.arange(len(records))
    records["label"], class_names = _labels(shard, file)
    return ShardIndex(records, class_names)


def _opened(shard: Shard) -> Any:
    require(["pyarrow.parquet"], "parquet", "a .parquet shard")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(shard.open() if is_remote(shard.path) else shard.path)
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())[:160]
        raise UserError(f"shard {shard.path!r} is cut off or not a Parquet file ({why})") from error


def _image_column(shard: Shard, schema: Any) -> str:
    """The first column of structs with bytes in them, else of bytes."""
    import pyarrow as pa

    def is_bytes(kind: Any) -> bool:
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    structs = [field for field in schema if pa.types.is_struct(field.type)]
    held = [field for field in structs if any(is_bytes(part.type) and part.name == "bytes" for part in field.type)]
    for field in (*held, *(field for field in schema if is_bytes(field.type))):
        return str(field.name)
    raise UserError(
        f"shard {shard.path!r} has no column of images (structs with bytes, or bytes); "
        f"its columns are {', '.join(schema.names[:12]) or 'none'}"
    )


def _labels(shard: Shard, file: Any) -> tuple[list[int] | int, list[str]]:
    """From the first column of numbers or text that is called like a label; names of numbers from the metadata."""
    import pyarrow as pa

    def is_label(kind: Any) -> bool:
        return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))

    schema = file.schema_arrow
    column = next((name for name in LABEL_FIELDS if name in schema.names and is_label(schema.field(name).type)), None)
    if column is None:
        return -1, []
    names: list[str] = []
    with suppress(ValueError, LookupError, TypeError):  # where Hugging Face names the numbers
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = [str(name) for name in features[column]["names"]]
    classes: dict[str, int] = {}
    labels = []
    try:
        for batch in file.iter_batches(columns=[column]):
            for value in batch.column(0).to_pylist():
                is_none = value is None or (isinstance(value, int) and value < 0)  # Hugging Face: -1 where unknown
                name = names[value] if isinstance(value, int) and 0 <= value < len(names) else str(value)
                labels.append(-1 if is_none else classes.setdefault(name, len(classes)))
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"shard {shard.path!r} is damaged: its column {column!r} can't be read") from error
    return labels, list(classes)


def open_parquet(shard: Shard) -> Reader:
    """Reads whole row groups, as the format has it, and keeps the last ones: neighbours come without another read."""
    shard.check()
    file = _opened(shard)
    column, lock = _image_column(shard, file.schema_arrow), Lock()
    counts = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    starts = np.cumsum([0, *counts])

    @lru_cache(maxsize=_KEPT_GROUPS)
    def group(number: int) -> Any:
        return file.read_row_group(number, columns=[column]).column(0)

    def read(place: int, num_bytes: int) -> bytes:
        number = int(np.searchsorted(starts, place, side="right")) - 1
        with lock:  # else every thread would read the same group
            value = group(number)[place - int(starts[number])].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None:
            raise ValueError("the record holds no bytes of an image")
        return bytes(content)

    return read
