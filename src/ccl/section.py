"""A section of settings, such as the options of a part: strict fields, and kinds of numbers. Without torch."""

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ccl.errors import did_you_mean

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Weight = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A group of settings: unknown keys and wrong types are errors, and nothing changes once it is made."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Explicit(dict[str, Any]):
    """A mapping that was given as one value: it replaces what lies below, and is not merged with it."""


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: sections are merged, anything else replaced."""
    values = copy.deepcopy(below if isinstance(below, Explicit) else dict(below))
    for key, value in above.items():
        inner = values.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping) and not isinstance(value, Explicit):
            value = merged(inner, value)
        values[key] = value
    return values


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of sections as `a.b`, beside those without a section."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return found


def known(what: str, value: str, options: Iterable[str]) -> str:
    """The value, if it is one of the options; else it is refused with the nearest of them."""
    if value not in options:
        raise ValueError(f"unknown {what} {value!r}{did_you_mean(value, options)}")
    return value


def num_bytes(text: str) -> int:
    """The bytes of "200 kB", "50MB" or "1.5 GB", units of a thousand each; raises ValueError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?B)", text, re.ASCII)
    count = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if count < 1:
        raise ValueError(
            f"{text!r} is not a size; write a number and one of {', '.join(_UNITS)}, as in 200 kB or 1.5GB"
        )
    return count
