"""The README as a package index shows it: pictures and links that lead into the repository would be broken there."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*")
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)([^)]*)\)")


def without_local_links(text: str) -> str:
    """Pictures of the repository are left out; of links the words and the file's name stay."""
    return _LINK.sub(lambda link: f"{link[1]} (`{link[2]}`)", _PICTURE.sub("", text))


class PackagePage(MetadataHookInterface):
    """Sets `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_local_links(text)}
