"""Settings from presets, YAML files and --set: read safely, merged in order, and refused with advice."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from ccl import trusted_classes
from ccl.errors import RefusedError, UserError, did_you_mean
from ccl.section import Explicit, merged
from ccl.settings import WHOLE, Settings, own_defaults, settings_class
from ccl.settings_files import parse_yaml, read_yaml, without_gone

_PRESETS = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """The presets that come with the package."""
    return sorted(path.stem for path in _PRESETS.glob("*.yaml"))


def load_settings(preset_or_file: str, assignments: Sequence[str] = ()) -> Settings:
    """Settings of a preset or YAML file, with `a.b=c` assignments on top; all mistakes are reported at once.

    A mapping, `a.b={…}`, replaces that of the preset; `a.b.c=…` changes one value in it.

    >>> settings = ccl.load_settings("demo", ["epochs=3", "memory.per_cluster=5"])
    >>> settings.epochs, settings.memory.per_cluster, settings.encoder.backbone
    (3, 5, 'convnet')
    """
    values, asked = without_gone(_read(preset_or_file)), parsed(assignments)
    objective = asked.get("objective", values.get("objective"))
    if objective != values.get("objective"):  # what it wants comes before what the preset has for its own
        values = merged(values, own_defaults(str(objective), ""))
    return validated(merged(values, asked))


def read_settings(path: Path) -> Settings:
    """The settings that a run or an encoder wrote into its folder, by `dump_settings`."""
    return validated(read_yaml(path), written_in=path.parent)


def parsed(assignments: Sequence[str]) -> dict[str, Any]:
    """`a.b=c` assignments as nested values; later ones win."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, sign, text = assignment.partition("=")
        if not sign or not key:
            raise UserError(
                f"--set takes key=value, such as --set epochs=10 or --set memory.per_cluster=5; got {assignment!r}"
            )
        value: Any = parse_yaml(f"value: {text}" if text else "value:", f"--set {assignment}").get("value")
        value = Explicit(value) if isinstance(value, dict) else value
        for part in reversed(key.strip().split(".")):
            value = {part: value}
        values = merged(values, value)
    trusted_classes.named(values)
    return values


def validated(values: Mapping[str, Any], *, written_in: Path | None = None, identity: str = "") -> Settings:
    """Settings from plain values; raises UserError with one line per mistake.

    Values that were written whole, into a folder that may be a stranger's, lack only settings that were not known then:
    these have the plain default, under which nothing changes, and not the one of the strategy.
    """
    if are_whole := written_in is not None:
        trusted_classes.read_from(written_in, values, identity)
    model = settings_class(values, are_whole=are_whole)
    if not are_whole:
        trusted_classes.named(values)
    try:
        return model.model_validate(without_gone(values) if are_whole else values, context={WHOLE: are_whole})
    except ValidationError as error:
        causes = [entry.get("ctx", {}).get("error") for entry in error.errors()]
        is_refused = any(isinstance(cause, RefusedError) for cause in causes)
        raise (RefusedError if is_refused else UserError)(*_explain(error, setting_names(model))) from None


def dump_settings(settings: Settings) -> str:
    """The resolved settings as YAML that `read_settings` and `load_settings` read back."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read(preset_or_file: str) -> dict[str, Any]:
    path = Path(preset_or_file)
    if preset_or_file in preset_names():
        path = _PRESETS / f"{preset_or_file}.yaml"
    elif not path.is_file():
        raise UserError(
            f"{preset_or_file!r} is neither a preset nor a file{did_you_mean(preset_or_file, preset_names())}"
        )
    values = read_yaml(path)
    base = values.pop("extends", None)
    if base is None:
        return values
    if base not in preset_names():
        raise UserError(f"{preset_or_file}: extends names no preset: {base!r}{did_you_mean(str(base), preset_names())}")
    return merged(_read(base), values)


def _explain(error: ValidationError, names: Sequence[str]) -> list[str]:
    """One line for each setting that is wrong; a union of types complains once per member, which is one mistake."""
    complaints: dict[str, list[str]] = {}
    for entry in error.errors():
        name = ".".join(str(part) for part in entry["loc"])
        if entry["type"] == "extra_forbidden":
            complaints[f"unknown setting {name!r}{_nearest(name, names)}"] = []
            continue
        known = next((known for known in names if f"{name}.".startswith(f"{known}.")), name)
        message = str(entry["msg"]).removeprefix("Value error, ")
        shown = repr(entry["input"])[:80]
        if known and entry["type"] != "value_error":
            message += f", got {shown}"
        complaints.setdefault(known, []).append(message)
    return [
        ": ".join(part for part in (name, "; or: ".join(messages)) if part) for name, messages in complaints.items()
    ]


def _nearest(name: str, names: Sequence[str]) -> str:
    """The most similar setting: by its whole name first, then by its last word in another section."""
    by_last_word = {known.rsplit(".", 1)[-1]: known for known in reversed(names)}
    last_word = name.rsplit(".", 1)[-1]
    if last_word in by_last_word:
        return f"; did you mean {by_last_word[last_word]!r}?"
    return did_you_mean(name, names)


def setting_names(model: type[BaseModel] = Settings, prefix: str = "") -> list[str]:
    """The names of all settings, as `a.b`."""
    names = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += setting_names(inner, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names
