"""The reference of all public names: directives that mkdocstrings fills from the docstrings. No torch in here."""

import ast
from pathlib import Path

import ccl

_INTRODUCTION = """# From Python

Every public name, made from its docstring. `ccl.__all__` is the promise: these names keep their meaning. All of them
are imported when they are first used, so that `import ccl` takes no time. Examples are run by the tests; `torch`,
`Path` and `Image` (Pillow's) are imported in them as usual.
"""
_GROUPS = {
    "An encoder that keeps up": ("ContinualEncoder", "FrozenEncoder", "frozen", "frozen_start", "EncoderTransformer"),
    "Use an encoder": (
        *("gather", "write_features", "read_features", "probe", "save_classifier", "load_classifier"),
        *("predict", "Collection", "stored_collection", "find_similar", "write_sheet", "export", "load_backbone"),
        *("write_card", "trust"),
    ),
    "Runs": ("load_settings", "Settings", "run", "read_run", "RunRecord", "load_dataset", "UserError"),
}


def subpackages() -> list[str]:
    """Public names that are packages or modules."""
    return [name for name, home in ccl._homes().items() if home == "ccl"]


def members(package: str) -> list[str]:
    """What a subpackage exports, `from … import NAME as NAME`, or a module defines, read without importing it."""
    root = Path(ccl.__file__).parent / package
    text = (root / "__init__.py" if root.is_dir() else root.with_suffix(".py")).read_text(encoding="utf-8")
    tree = ast.parse(text)
    if root.is_dir():
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        return sorted(alias.name for node in imports for alias in node.names if alias.name == alias.asname)
    return sorted(node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))


def page() -> str:
    """The page in Markdown, with a directive for each name."""
    assert sorted(name for names in _GROUPS.values() for name in names) == sorted(
        ccl._homes().keys() - set(subpackages())
    )
    parts = [_INTRODUCTION]
    for title, names in _GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [_directive(f"ccl.{name}", f"{ccl._homes()[name]}.{name}") for name in names]
    for package in subpackages():
        parts.append(f"## ccl.{package}\n")
        parts.append(f"::: ccl.{package}\n    options:\n      members: []\n      show_root_heading: false\n")
        parts += [_directive(f"ccl.{package}.{name}", f"ccl.{package}.{name}") for name in members(package)]
    return "\n".join(parts)


def _directive(shown: str, home: str) -> str:
    return f"::: {home}\n    options:\n      heading_level: 3\n      heading: {shown}\n      toc_label: {shown}\n"


if __name__ == "__main__":
    print(page())
