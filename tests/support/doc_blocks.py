"""The code blocks of the documentation: what is run of them, and what says that it is not."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^ *```([\w-]*)([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# A comment that a reader sees too: as a block's first line it stands for the block, behind a line for that line.
_NOT_RUN = re.compile(r"# not run by the tests: (\S.*)$")


@dataclass(frozen=True)
class Line:
    """A line of a shell block without its continuations, and why it is not run, if so."""

    text: str
    reason: str | None

    def commands(self) -> Iterator[list[str]]:
        """The words of each command, without comments and variables set before it; "&&" joins two."""
        for command in self.text.split(" && "):
            words = shlex.split(command, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                del words[0]
            if words:
                yield words


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    about: str
    content: str

    @property
    def reason(self) -> str | None:
        """Why no test runs the block, or None."""
        found = _NOT_RUN.match(self.content.partition("\n")[0])
        return found and found[1]

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def lines(self) -> Iterator[Line]:
        """The lines of a shell block; where the block is not run, none of them is."""
        for line in self.content.replace("\\\n", " ").splitlines():
            found = _NOT_RUN.search(line)
            yield Line(line, self.reason or (found and found[1]))

    def ccl_commands(self) -> Iterator[list[str]]:
        """The arguments of each call of ccl, run or not; "…" stands for what the reader puts in."""
        for line in self.lines():
            for words in line.commands():
                if "ccl" in words[:1] and "…" not in line.text:
                    yield words[1:]
                elif words[0] == "torchrun" and "ccl" in words:
                    yield words[words.index("ccl") + 1 :]


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2].strip(), match[3])
        for match in _BLOCK.finditer(text)
    ]
