"""The code blocks of the documentation: found, and run small."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOT_RUN = "not-run"  # a word behind the language of a block
_BLOCK = re.compile(r"^```([\w-]*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    about: str
    content: str

    @property
    def is_run(self) -> bool:
        return NOT_RUN not in self.about.split()

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """The words of each line that calls ccl, without comments; "&&" joins two."""
        for line in self.content.replace("\\\n", " ").splitlines():
            for command in line.split(" && "):
                if command.startswith("ccl "):
                    yield shlex.split(command, comments=True)[1:]


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2].strip(), match[3])
        for match in _BLOCK.finditer(text)
    ]
