"""The rehearsal memory: the few images of the past that are kept, and vectors beside them where a part wants some."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ccl.atomic_files import remove, write_folder
from ccl.data.image_sources import EncodedSource, ImageSource, SquaredSource
from ccl.memory.budget import Budget, shares, survivors, within

_VECTORS = "vectors."  # before a kind, in the state
_SUFFIXES = {b"\x89PNG": ".png", b"\xff\xd8": ".jpg", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}


class RehearsalMemory:
    """Encoded images with id, step, cluster and score; it owns copies, so the old data may be deleted."""

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.ids = torch.zeros(0, dtype=torch.long)  # (M,)
        self.steps = torch.zeros(0, dtype=torch.long)  # (M,): the step an image came from, counted from 0
        self.clusters = torch.zeros(0, dtype=torch.long)  # (M,)
        self.scores = torch.zeros(0)  # (M,), the lowest stays longest: view variance, place of choice, nan at random
        # (M, D) by kind: what the encoder made of each image when it was kept; a row of nan where nobody asked then
        self.vectors: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.files)

    def add(
        self,
        source: ImageSource,
        positions: Tensor,
        step: int,
        clusters: Tensor,
        scores: Tensor,
        vectors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Keep the images at these positions of the source, and beside them `vectors`, a row for each, by kind."""
        given, unknown = vectors or {}, float("nan")
        for kind in sorted(self.vectors.keys() | given.keys()):
            width = (given[kind] if kind in given else self.vectors[kind]).shape[1]
            before = self.vectors.get(kind, torch.full((len(self), width), unknown))
            added = given.get(kind, torch.full((len(positions), width), unknown))
            self.vectors[kind] = torch.cat([before, added])
        self.files += [source.encoded(position) for position in positions.tolist()]
        self.ids = torch.cat([self.ids, source.ids[positions]])
        self.steps = torch.cat([self.steps, torch.full((len(positions),), step)])
        self.clusters = torch.cat([self.clusters, clusters.to(torch.long)])
        self.scores = torch.cat([self.scores, scores.to(torch.float32)])

    def recall(self, positions: Tensor) -> dict[str, Tensor]:
        """The vectors beside the images at these positions, by kind."""
        return {kind: rows[positions] for kind, rows in self.vectors.items()}

    def keep(self, positions: Tensor) -> None:
        """Keep only the images at these positions, in this order."""
        self.files = [self.files[position] for position in positions.tolist()]
        self.ids, self.steps = self.ids[positions], self.steps[positions]
        self.clusters, self.scores = self.clusters[positions], self.scores[positions]
        self.vectors = self.recall(positions)

    def room(self, budget: Budget) -> int:
        """The share of the budget that one more step would have, if it wanted all of it."""
        sizes = self._sizes(budget)
        held = [int(sizes[self.steps == step].sum()) for step in torch.unique(self.steps)]
        return shares(budget.limit, [*held, budget.limit])[-1]

    def trim(self, budget: Budget, *context: int | str) -> None:
        """Cut every step to its share of the budget."""
        about = (self.steps, self.clusters, self.scores, self.ids)
        self.keep(survivors(budget.limit, self._sizes(budget), *about, *context))

    def cut(self, budget: Budget, order: Tensor) -> None:
        """Keep as many images from the front of an order (M,) as the budget holds, whatever step they are of."""
        self.keep(order[within(self._sizes(budget)[order].tolist(), budget.limit)].sort().values)

    def _sizes(self, budget: Budget) -> Tensor:
        return torch.tensor([budget.size(file) for file in self.files], dtype=torch.long)  # (M,)

    def source_like(self, current: ImageSource) -> ImageSource:
        """The kept images in the form of the current step's: one tensor beside a tensor, encoded beside files."""
        kept, size = EncodedSource(self.files, self.ids), current.image_size
        return kept if size is None else kept.decoded(size, is_squared=isinstance(current, SquaredSource))

    def state_dict(self) -> dict[str, Tensor]:
        """The state as plain tensors; the files lie end to end in one."""
        content = bytearray(b"".join(self.files))
        whole = torch.frombuffer(content, dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)
        return {
            "bytes": whole,
            "lengths": torch.tensor([len(file) for file in self.files], dtype=torch.long),
            "ids": self.ids,
            "steps": self.steps,
            "clusters": self.clusters,
            "scores": self.scores,
            **{_VECTORS + kind: rows for kind, rows in self.vectors.items()},
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        whole = state["bytes"].numpy().tobytes()
        ends = state["lengths"].cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        self.files = [whole[start:end] for start, end in zip(starts, ends, strict=False)]
        self.ids, self.steps = state["ids"], state["steps"]
        self.clusters, self.scores = state["clusters"], state["scores"]
        self.vectors = {name.removeprefix(_VECTORS): rows for name, rows in state.items() if name.startswith(_VECTORS)}

    def write(self, folder: Path) -> None:
        """Write the images as files, and `index.csv` with a row for each; it takes the place of an earlier one."""
        index, contents = io.StringIO(newline=""), dict[str, bytes]()
        table = csv.writer(index)
        table.writerow(["file", "id", "step", "cluster", "score"])
        for number, content in enumerate(self.files):
            suffix = next((suffix for magic, suffix in _SUFFIXES.items() if content.startswith(magic)), ".img")
            name = f"{number:06d}{suffix}"
            contents[name] = content
            about = [int(self.ids[number]), int(self.steps[number]) + 1, int(self.clusters[number])]
            table.writerow([name, *about, float(self.scores[number])])
        remove(folder)
        write_folder(
            folder, {"index.csv": index.getvalue().encode(), **contents}, folder.with_name(f".{folder.name}.part")
        )
