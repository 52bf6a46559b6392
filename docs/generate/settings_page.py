"""The reference of all settings, made from the settings models, their comments and the presets."""

import ast
import inspect
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ccl.catalogue import RETENTION, title_of
from ccl.loading import load_settings, setting_names
from ccl.settings import Settings

# What the text of the paper gives, beside what its preset spells out; where it is silent, docs/paper_map.md says what
# was chosen.
_PAPER = frozenset(
    {"dataset", "objective", "steps", "epochs", "batch_size", "temperature", "views.recipe", "encoder.backbone"}
    | {"encoder.dim", "encoder.batch_norm_groups", "encoder.stem", "encoder.head", "optimizer.name"}
    | {"optimizer.learning_rate", "optimizer.momentum", "optimizer.weight_decay", "optimizer.schedule"}
    | {"moco_v2.queue_size", "moco_v2.key_momentum", "memory.per_cluster", "memory.num_views", "distillation.momentum"}
    | {"extra_sample_queue.size", "weights.contrast", "weights.distillation", "weights.extra_sample_queue"}
)
_INTRODUCTION = """# All settings

Made from the code when these pages are built. A setting is given by `--set name=value`, in a YAML file, or by its name
from Python (`ccl.load_settings`, `ContinualEncoder.create`); "none" is written `null` in YAML and `--set`.

Defaults are the paper's values for CIFAR-100 where it has one; `ccl learn` chooses some anew from the images
([An encoder that keeps up](../keeping_up.md)), and presets and what an objective or a strategy wants lie above them.
"Paper" is what the presets `cifar100` and `imagenet-sub` have where the paper gives a value
([the paper in the code](../paper_map.md)).
"""


@dataclass(frozen=True)
class Entry:
    """One setting."""

    name: str
    kind: str
    default: str
    paper: str
    words: str


def entries() -> dict[str, list[Entry]]:
    """The settings by their section, "" for those of none, each in the order of the models."""
    presets = {name: load_settings(name).model_dump() for name in ("cifar100", "imagenet-sub")}
    found: dict[str, list[Entry]] = {"": []}
    for name in setting_names():
        section, _, _ = name.rpartition(".")
        model = Settings.model_fields[section].annotation if section else Settings
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        found.setdefault(section, []).append(_entry(name, model, presets))
    return found


def page() -> str:
    """The page in Markdown."""
    parts = [_INTRODUCTION]
    for section, rows in entries().items():
        model = Settings.model_fields[section].annotation if section else None
        title = title_of(section) if section else "Settings without a section"
        about = (model.__doc__ if model else None) or f"{title[:1].upper()}{title[1:]}."
        parts.append(f"## {section or 'Top level'}\n\n{about.splitlines()[0]}\n")
        parts.append("| setting | kind | default | paper | |\n|---|---|---|---|---|")
        parts.append("\n".join(map(_row, rows)) + "\n")
    return "\n".join(parts)


def _row(entry: Entry) -> str:
    cells = (f"`{entry.name}`", entry.kind, entry.default, entry.paper, entry.words)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _entry(name: str, model: type[BaseModel], presets: dict[str, dict[str, Any]]) -> Entry:
    key = name.rpartition(".")[2]
    field = model.model_fields[key]
    values = {preset: _value(name, dumped) for preset, dumped in presets.items()}
    paper = ""
    if name in _PAPER:
        cifar, imagenet = _shown(values["cifar100"]), _shown(values["imagenet-sub"])
        paper = cifar if cifar == imagenet else f"{cifar}; ImageNet {imagenet}"
    default = field.default if "." in name else Settings.model_fields[key].default
    return Entry(name, _kind(field), _shown(default), paper, _words(model, key))


def _value(name: str, dumped: dict[str, Any]) -> Any:
    value: Any = dumped
    for part in name.split("."):
        value = value[part]
    return value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"`{', '.join(map(str, value))}`" if value else "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "none" if value is None else f"`{value}`"


def _kind(field: FieldInfo) -> str:
    """The type in words, with its bounds."""
    bounds = {type(part).__name__: part for part in field.metadata}
    signs = (("Ge", "ge", "≥"), ("Gt", "gt", ">"), ("Le", "le", "≤"), ("Lt", "lt", "<"))
    limits = [f"{sign} {getattr(bounds[kind], key):g}" for kind, key, sign in signs if kind in bounds]
    return ", ".join([_type(field.annotation), *limits])


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if hasattr(annotation, "__metadata__"):  # Annotated
        return _type(parts[0])
    if origin in (list, dict):
        return f"{'list' if origin is list else 'mapping'} of {_type(parts[-1])}"
    if origin is Union or type(annotation).__name__ == "UnionType":
        return " or ".join(dict.fromkeys(_type(part) for part in parts if part is not type(None)))
    return {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}.get(
        getattr(annotation, "__name__", ""), str(annotation)
    )


def _words(model: type[BaseModel], key: str) -> str:
    if model.__name__ == "WeightSettings" and key in RETENTION:
        row = RETENTION[key]
        return f"the weight of {row.title}" if row.title else ""
    owner = next(kind for kind in model.__mro__ if key in vars(kind).get("__annotations__", {}))
    return _comments(owner.__module__)[owner.__qualname__, key]


@cache
def _comments(module: str) -> dict[tuple[str, str], str]:
    """What the comments beside and above each setting of a module say, by class and name."""
    text = inspect.getsource(import_module(module))
    lines = {token.start[0]: token for token in _comment_tokens(text)}
    found = {}
    classes = [(node, node.name) for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    classes += [
        (inner, f"{name}.{inner.name}")
        for node, name in classes
        for inner in node.body
        if isinstance(inner, ast.ClassDef)
    ]
    for node, name in classes:
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                found[name, line.target.id] = _joined(line, lines)
    return found


def _comment_tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return (token for token in tokens if token.type == tokenize.COMMENT)


def _joined(line: ast.AnnAssign, comments: dict[int, tokenize.TokenInfo]) -> str:
    above: list[str] = []
    number = line.lineno - 1
    while number in comments and not comments[number].line[: comments[number].start[1]].strip():
        above.insert(0, comments[number].string)
        number -= 1
    beside = [comments[line.lineno].string] if line.lineno in comments else []
    return " ".join(text.lstrip("# ").strip() for text in [*above, *beside])


if __name__ == "__main__":
    print(page())
