"""Settings as they stand in files: YAML that is read safely, and settings that went out."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ccl.errors import UserError

# Settings that went out, by the value under which nothing changes: written folders have them.
_GONE: Mapping[str, Any] = {
    "distillation.plain_images": "old",
    "distillation.reduction": "mean",
    "distillation.rows": "plain",
    "insdisc.bank_momentum": 0.5,
    "insdisc.num_noise": None,
    "insdisc.proximal": 0.0,
    "lump.count": "same_updates",
    "memory.include_plain": False,
    "memory.replacement": False,
    "memory.score": "variance",
    "memory.top_up": True,
    "moco_v2.reset_key_encoder": False,
    "optimizer.carry_momentum": False,
    "optimizer.trust": 0.02,
    "pnr.teacher_statistics": "running",
    "predictive_distillation.distance_temperature": None,
    "predictive_distillation.teacher_statistics": "running",
    "probe.network": "product",
    "share.count": "same_updates",
    "views.hue": None,
}


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads 1e-4 as a number; YAML 1.1 reads it as text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """A file's settings; raises UserError in one line where it can't be read."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"can't read {path}: {error}") from None


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The mapping in a text; `where` it stands is named in errors."""
    try:
        values = _Loader(text).get_single_data()
        _refuse_what_no_setting_is(values)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        where_exactly = getattr(error, "problem_mark", None)
        line = f", line {where_exactly.line + 1}" if where_exactly else ""
        why = " ".join(str(getattr(error, "problem", error)).split())
        raise UserError(f"{where}{line}: not valid YAML: {why}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{where}: settings are 'key: value' lines, this is a {type(values).__name__}")
    return values


def _refuse_what_no_setting_is(values: Any) -> None:
    """Refuse numbers that no tensor holds, and a few lines that stand for millions of values."""
    left = [values]
    for _ in range(100_000):  # values behind an alias count each time
        if not left:
            return
        value = left.pop()
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError("a whole number of more than 63 bits")
        if isinstance(value, dict | list | set):
            left += [*value, *(value.values() if isinstance(value, dict) else [])]
    raise ValueError("more than 100,000 values")


def without_gone(values: Mapping[str, Any]) -> dict[str, Any]:
    """A file's settings without those that were removed; a removed one that changed something is refused."""
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    for setting, harmless in _GONE.items():
        section, _, key = setting.partition(".")
        inner = found.get(section)
        if not isinstance(inner, dict) or key not in inner:
            continue
        if (value := inner.pop(key)) != harmless:
            raise UserError(f"{setting} is {value!r}: that setting went out, and only {harmless!r} can be read")
        if not inner:
            del found[section]  # nothing else may be left of it
    return found
