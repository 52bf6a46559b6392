"""The images that a user's inputs name, files and shards in the order of the inputs, as one source."""

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch

from ccl.data.dataset import Progress
from ccl.data.found_files import FoundFiles
from ccl.data.gathered_images import SourceNames
from ccl.data.shards import PREFIX, open_shards, shard_paths
from ccl.data.sources import FileSource, ImageSource, JoinedSource
from ccl.errors import UserError


def find_images(
    inputs: Sequence[str | Path], scratch: Path, progress: Progress | None = None
) -> tuple[ImageSource, Sequence[str], tuple[str, ...]]:
    """The images that inputs name, not yet looked into, with their names and a line for each kind that is skipped."""
    items = [os.fspath(item) for item in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    if not items:
        raise UserError("no images are given; name folders, images, archives, lists of paths or shards")
    parts: list[tuple[ImageSource, Sequence[str]]] = []
    notes: list[str] = []
    for is_sharded, some in groupby(items, key=lambda item: item.startswith(PREFIX)):
        if is_sharded:
            paths = [path for item in some for path in shard_paths(item.removeprefix(PREFIX))]
            sharded = open_shards(paths, progress, with_labels=False)
            parts.append((sharded.source, SourceNames(sharded.source, range(len(sharded.source)))))
            notes += sharded.notes
        else:
            found = FoundFiles(scratch, progress)
            for item in some:
                found.add(item)
            parts.append((FileSource(found.paths), found.names))
            notes += found.notes()
    if len(parts) == 1:
        return *parts[0], tuple(notes)
    joined = JoinedSource([source for source, _ in parts])
    names = [name for _, some_names in parts for name in some_names]
    return joined.with_ids(torch.arange(len(joined))), names, tuple(notes)
