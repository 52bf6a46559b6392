"""Weights from a file or folder, read without running any code in it, and how their network wants its images."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ccl.errors import UserError

CONFIG, MODEL = "config.json", "model.safetensors"  # the hub's layout
ABOUT = "ccl"  # what the description by `ccl export` is called in a file's metadata and in config.json
_LARGEST_HEADER = 100_000_000  # bytes
_NAMES_SHOWN = 3
# How a network's own description calls what must be known of its images.
_FORMAT = {"mean": ("mean", "image_mean"), "std": ("std", "image_std"), "size": ("input_size", "size", "image_size")}


@dataclass(frozen=True)
class WeightsFile:
    """The tensors of a file."""

    path: Path  # of the file, or of its folder
    tensors: dict[str, Tensor]
    sha256: str


@dataclass(frozen=True)
class Matched:
    """The match of a file's tensors to a network's."""

    title: str  # of the file
    tensors: dict[str, Tensor]  # by the network's names
    num_tensors: int  # of the network
    missing: tuple[str, ...] = ()  # of the network: left as they were initialised
    unexpected: tuple[str, ...] = ()  # of the file: not used

    @property
    def line(self) -> str:
        """One line that accounts for every key of the file."""
        loaded = f"weights: loaded {len(self.tensors)} of {self.num_tensors} tensors from {self.title}"
        counts = [f"{len(names)} ({_shown(names)})" if names else "0" for names in (self.missing, self.unexpected)]
        return f"{loaded}; missing {counts[0]}, unexpected {counts[1]}"


def read_weights(path: Path) -> WeightsFile:
    """A .safetensors or .pt file, or a folder with config.json and model.safetensors; refuses all else in one line."""
    file = path / MODEL if os.path.isdir(path) else path
    if not file.is_file() and file != path:
        raise UserError(f"encoder.weights {path}: the folder has no {MODEL}; there must be {CONFIG} and {MODEL}")
    if not file.is_file():
        raise UserError(f"encoder.weights {path}: there is no such file; it takes pretrained, a file or a folder")
    if file.suffix == ".safetensors":
        tensors = _from_safetensors(file, _tensors_of)
    elif file.suffix in (".pt", ".pth", ".bin", ".ckpt", ".tar"):
        tensors = _from_pt(file)
    else:
        raise UserError(f"encoder.weights {path}: weights are read from .safetensors, .pt and .pth files, or a folder")
    with file.open("rb") as content:
        return WeightsFile(path, tensors, hashlib.file_digest(content, "sha256").hexdigest())


def read_config(path: Path) -> Mapping[str, Any]:
    """The description in a file or folder of weights, without its tensors; {} where there is none."""
    if os.path.isdir(path):
        try:
            content = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise _refusal(path, f"its {CONFIG} can't be read", error) from error
        return content if isinstance(content, dict) else {}
    if path.suffix != ".safetensors" or not path.is_file():
        return {}
    about = _from_safetensors(path, lambda file: json.loads((file.metadata() or {}).get(ABOUT, "{}")))
    return {ABOUT: about, "preprocessing": about.get("preprocessing", {})} if isinstance(about, dict) and about else {}


def _from_safetensors(path: Path, read: Callable[[Any], Any]) -> Any:
    """What is read of an opened file."""
    try:
        with path.open("rb") as head:
            length = int.from_bytes(head.read(8), "little")
    except OSError as error:
        raise _refusal(path, "it can't be read", error) from error
    if length > min(_LARGEST_HEADER, max(path.stat().st_size - 8, 0)):  # before a byte of it is parsed
        raise UserError(f"encoder.weights {path}: it is not a safetensors file: its header would have {length:,} bytes")
    try:
        with safe_open(path, framework="pt") as file:
            return read(file)
    except Exception as error:  # safetensors raises many kinds for broken files
        raise _refusal(path, "it is not a safetensors file", error) from error


def _tensors_of(file: Any) -> dict[str, Tensor]:
    # Copied: tensors of a mapped file lie at odd addresses, where a product may round differently.
    return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)


def _from_pt(path: Path) -> dict[str, Tensor]:
    try:
        tensors = dict(_flat(torch.load(path, map_location="cpu", weights_only=True), ""))
    except Exception as error:  # torch raises many kinds for broken files
        raise _refusal(path, "it can't be read as weights alone, and code in it is never run", error) from error
    if not tensors:
        raise UserError(f"encoder.weights {path}: there are no tensors in it")
    return tensors


def _flat(content: Any, prefix: str) -> Iterable[tuple[str, Tensor]]:
    """All tensors of nested mappings, their keys joined by dots: "state_dict.module.conv1.weight"."""
    if isinstance(content, Tensor):
        yield prefix.removesuffix("."), content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _flat(value, f"{prefix}{key}.")


def _refusal(path: Path, what: str, error: Exception) -> UserError:
    first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    why = first_line.partition(". ")[0][:120]  # torch explains its own history after the first sentence
    return UserError(f"encoder.weights {path}: {what} ({why})")


def matched(file: WeightsFile, network: nn.Module, title: str) -> Matched:
    """The file's tensors by the network's names, whatever stands before them; refuses what is of another network."""
    wanted = {name: tensor for name, tensor in network.state_dict().items() if not name.endswith("num_batches_tracked")}
    theirs, mine = _prefixes(file.tensors, wanted)
    found = {name: theirs + name.removeprefix(mine) for name in wanted if name.startswith(mine)}
    found = {name: key for name, key in found.items() if key in file.tensors}
    if 2 * len(found) < len(wanted):
        some, others = _shown(tuple(wanted)), _shown(tuple(file.tensors))
        raise UserError(
            f"encoder.weights {file.path} is not of {title}: of its {len(wanted)} tensors {len(found)} are in it; "
            f"the network has {some}, the file {others}"
        )
    for name, key in found.items():
        if file.tensors[key].shape != wanted[name].shape:
            here, there = tuple(wanted[name].shape), tuple(file.tensors[key].shape)
            raise UserError(
                f"encoder.weights {file.path} is not of {title}: {key} has the shape {there}, and the network's {here}"
            )
        if not torch.isfinite(file.tensors[key]).all():
            raise UserError(f"encoder.weights {file.path}: {key} has values that are not finite")
    counters = {key for key in file.tensors if key.endswith("num_batches_tracked")}
    return Matched(
        str(file.path),
        {name: file.tensors[key] for name, key in found.items()},
        len(wanted),
        tuple(name for name in wanted if name not in found),
        tuple(key for key in file.tensors if key not in counters and key not in set(found.values())),
    )


def _prefixes(theirs: Iterable[str], mine: Iterable[str]) -> tuple[str, str]:
    """What stands before the names on either side ("module.encoder_q.", ""), where most of them are equal then.

    Of several the first in the file, so that of MoCo's two encoders it is the query's.
    """
    counts: Counter[tuple[str, str]] = Counter({("", ""): 0})
    names = list(mine)
    of_mine = Counter(prefix for name in names for prefix in _before(name))
    for own in [prefix for prefix, count in of_mine.items() if 2 * count > len(names)]:
        wanted = {name.removeprefix(own) for name in names if name.startswith(own)}
        for name in theirs:
            counts.update((prefix, own) for prefix in _before(name) if name.removeprefix(prefix) in wanted)
    return counts.most_common(1)[0][0]


def _before(name: str) -> list[str]:
    """ "", "a." and "a.b." of "a.b.c"."""
    words = name.split(".")
    return ["".join(f"{word}." for word in words[:count]) for count in range(len(words))]


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")


@dataclass(frozen=True)
class ImageFormat:
    """The size and normalisation of a network's images; None where not known."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: int | None = None

    def over(self, other: "ImageFormat") -> "ImageFormat":
        """This format, with missing values taken from the other."""
        return ImageFormat(self.mean or other.mean, self.std or other.std, self.size or other.size)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ImageFormat":
        """The format in a JSON description: timm's `pretrained_cfg`, a hub's preprocessor, or one of `ccl export`."""
        for inner in ("pretrained_cfg", "preprocessing"):
            if isinstance(config.get(inner), Mapping):
                return cls.from_config(config[inner])
        found = {key: next((config[name] for name in names if name in config), None) for key, names in _FORMAT.items()}
        return cls(_three(found["mean"]), _three(found["std"]), _side(found["size"]))

    @classmethod
    def of_module(cls, module: nn.Module) -> "ImageFormat":
        """The format in a network's attributes: timm's `pretrained_cfg`, or `mean`, `std` and `input_size`."""
        config = getattr(module, "pretrained_cfg", None)
        if isinstance(config, Mapping):
            return cls.from_config(config)
        names = [name for several in _FORMAT.values() for name in several]
        return cls.from_config({name: value for name in names if (value := getattr(module, name, None)) is not None})


def _three(value: Any) -> tuple[float, ...] | None:
    is_known = isinstance(value, list | tuple) and len(value) == 3 and all(isinstance(v, int | float) for v in value)
    return tuple(float(v) for v in value) if is_known else None


def _side(value: Any) -> int | None:
    """The side in 224, [3, 224, 224], {"height": 224, …} or {"shortest_edge": 224}."""
    if isinstance(value, Mapping):
        value = value.get("height", value.get("shortest_edge"))
    if isinstance(value, list | tuple):
        value = value[-1] if value else None
    return value if isinstance(value, int) and value > 0 else None
