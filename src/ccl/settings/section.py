"""What all sections share: strict fields, and kinds of numbers."""

import copy
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ccl.errors import did_you_mean

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Weight = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A group of settings: unknown keys and wrong types are errors, and nothing changes once it is made."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: sections are merged, anything else replaced."""
    values = copy.deepcopy(dict(below))
    for key, value in above.items():
        inner = values.get(key)
        values[key] = merged(inner, value) if isinstance(value, Mapping) and isinstance(inner, dict) else value
    return values


def known(what: str, value: str, options: Iterable[str]) -> str:
    """The value, if it is one of the options; else it is refused with the nearest of them."""
    if value not in options:
        raise ValueError(f"unknown {what} {value!r}{did_you_mean(value, options)}")
    return value
