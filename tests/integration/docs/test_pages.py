"""The documentation: every block runs or says that it does not, every command is one, every link leads somewhere."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from doc_blocks import PAGES, ROOT, Block, blocks
from drops import TINY

from ccl.cli import main
from ccl.cli.app import app
from ccl.continual_encoder import drop_settings, learn_drop
from ccl.data import embedded_datasets
from ccl.data.dataset import Dataset, narrowed
from ccl.settings import merged

RUN = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
LONG = dict.fromkeys(("photos.md", "compare.md"), pytest.mark.slow)  # ten commands, or runs that are probed
HARMLESS = ("pip install", "make ")  # lines of the shell that no test runs
SMALL = {name: value for name, value in TINY.items() if name != "memory"} | {"memory": {"clusters": 3}}


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ccl", *words])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert not leaving.value.code, words


@pytest.fixture
def tiny_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ccl chooses for images and epochs is tiny, whatever a page asks for, and it draws few pictures."""
    real, drawn = drop_settings.chosen_settings, embedded_datasets.generate

    def chosen(parent: Any, before: Any, new: Any, asked: Mapping[str, Any]) -> Any:
        return real(parent, before, new, merged(asked, SMALL))

    def few(domain: str, seed: int, size: int) -> Dataset:
        return narrowed(drawn(domain, seed, size), None, images_per_class=4)

    monkeypatch.setattr(learn_drop, "chosen_settings", chosen)
    monkeypatch.setattr(embedded_datasets, "generate", few)


@pytest.mark.parametrize("page", [pytest.param(page, marks=LONG.get(page.name, ())) for page in RUN], ids=names)
@pytest.mark.usefixtures("tiny_choices")
def test_every_block_runs_as_it_is_printed_or_says_that_it_does_not(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {"__name__": "__main__"}
    ran = 0
    for block in blocks(page):
        if block.language == "python" and block.is_run:
            exec(compile(block.content, block.where, "exec"), known)
            ran += 1
        elif block.language == "sh" and block.is_run and page != ROOT / "README.md":
            for words in block.commands():
                run_command(words, monkeypatch)
                ran += 1
    assert ran


def test_the_readme_fits_on_a_screen_and_runs() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 500
    assert max(map(len, text.splitlines())) <= 120
    assert "without forgetting" not in text
    python, shell = (
        [block for block in blocks(ROOT / "README.md") if block.language == kind] for kind in ("python", "sh")
    )
    assert [len([line for line in block.content.splitlines() if line]) for block in python] == [8]
    assert len(list(shell[-1].commands())) == 6


def command_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in ("", "sh", "bash")]


def test_every_command_of_every_page_is_one_that_the_command_line_accepts() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    seen = 0
    for block in command_blocks():
        for words in block.commands():
            if words[0].startswith("-") or "…" in " ".join(words):
                continue
            assert words[0] in commands, block.where
            try:
                with commands[words[0]].make_context(words[0], words[1:]):
                    seen += 1
            except typer.TyperException as error:
                pytest.fail(f"{block.where}: ccl {' '.join(words)}: {error.format_message()}")
    assert seen > 40


def test_every_python_block_of_every_page_is_valid() -> None:
    found = [block for page in PAGES for block in blocks(page) if block.language == "python"]
    for block in found:
        if 'after="' not in block.about and 'before="' not in block.about:  # pieces of a file
            compile(block.content, block.where, "exec")
    assert len(found) > 15


_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_MENTION = re.compile(r"`((?:docs|examples|src|tests|benchmarks)/[\w./-]+\.\w+|[A-Z]+\.md)`")


def anchors(page: Path) -> set[str]:
    """As GitHub and mkdocs make them of headings."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Pages that `make docs` makes; their generators have tests of their own.
GENERATED = {f"docs/reference/{name}.md" for name in ("settings", "commands", "api")}


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in _LINK.findall(text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            assert path.startswith("https:"), target
            continue
        goal = (page.parent / path).resolve() if path else page
        if str(goal.relative_to(ROOT)) in GENERATED:
            continue
        assert goal.exists(), f"{names(page)} links {target}"
        assert not anchor or anchor in anchors(goal), f"{names(page)} links {target}"
    for path in _MENTION.findall(text):
        assert (ROOT / path).exists(), f"{names(page)} mentions {path}"


def test_no_line_of_a_shell_block_is_unknown() -> None:
    """A page that is run has only lines that are run here or known to be harmless."""
    for page in RUN:
        for block in blocks(page):
            if block.language == "sh" and block.is_run:
                for line in block.content.splitlines():
                    assert line.startswith(("ccl ", *HARMLESS)), f"{block.where}: {line}"
