"""The reference of all commands, made from their help. No torch in here."""

import inspect
from typing import Any

import typer

from ccl.cli.app import app

_INTRODUCTION = """# All commands

Made from the commands' own help when these pages are built; `ccl COMMAND --help` shows the same. Exit codes: 0 done, 2
a mistake of yours in one line before any work, 130 and 143 stopped by a signal with its state saved, 1 the rest.
`ccl --version` shows the versions and the device, `ccl --install-completion` completes commands in your shell.
"""


def commands() -> dict[str, Any]:
    """Each command by its name, in the order of `ccl --help`."""
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def page() -> str:
    """The page in Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(name, command) for name, command in commands().items())])


def _section(name: str, command: Any) -> str:
    *paragraphs, example = inspect.cleandoc(command.help).split("\n\n")
    usage = " ".join(["ccl", name, *(_usage(parameter) for parameter in command.params if _is_needed(parameter))])
    shown = example.removeprefix("Example: ").replace(" && ", "\n")
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    table = "\n".join(["| | | default |", "|---|---|---|", *rows]) if rows else "It has no options."
    words = "\n\n".join(paragraphs)
    return f"## ccl {name}\n\n{words}\n\n```text\n{usage} [options]\n```\n\n{table}\n\n```sh\n{shown}\n```\n"


def _is_needed(parameter: Any) -> bool:
    return bool(parameter.required) or parameter.param_type_name == "argument"


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return f"{parameter.opts[0]} {parameter.name.upper()}"


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name, default = f"`{_usage(parameter)}`", ""
    else:
        name = ", ".join(f"`{word}`" for word in parameter.opts)
        is_silent = parameter.default is None or parameter.default is False or parameter.default == []
        default = "required" if parameter.required else "" if is_silent else f"`{parameter.default}`"
    return f"| {name} | {(parameter.help or '').replace('|', '&#124;')} | {default} |"


if __name__ == "__main__":
    print(page())
