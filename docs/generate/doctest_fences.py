"""Examples in docstrings as code: Markdown would read ">>>" as quotations."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"((?:^>>> .*\n?(?:^(?!>>> )\S.*\n?|^ +.*\n?)*)+)", re.MULTILINE)


class DoctestFences(griffe.Extension):
    """Puts each example of a docstring in a fence."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"\n```pycon\n{found[1].rstrip()}\n```\n", text)
