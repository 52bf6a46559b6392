"""What `make docs` does beside mkdocs: pages made from the code, links for files that pages mention, a whole menu."""

import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import api_page
import commands_page
import settings_page

ROOT = Path(__file__).parents[2]
_COPIED = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}
_DATED = ("results.md", "performance.md", "reliability.md")
_MENTION = re.compile(r"`docs/([\w/]+\.md)`")
_FENCE = re.compile(r"^```(\w+) +([^\n{][^\n]*)$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages that the menu does not name join its how-to pages."""
    assert config.nav is not None
    known = str(config.nav)
    how_to = next(part["How-to"] for part in config.nav if "How-to" in part)
    how_to += [path.name for path in sorted((ROOT / "docs").glob("*.md")) if f"'{path.name}'" not in known]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """The reference, and what stands at the root of the repository."""
    made = {
        "reference/settings.md": settings_page.page(),
        "reference/commands.md": commands_page.page(),
        "reference/api.md": api_page.page(),
    }
    made |= {name: (ROOT / path).read_text(encoding="utf-8") for name, path in _COPIED.items()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Mentions of pages become links, and what a fence says beside its language becomes its title."""
    here = posixpath.dirname(page.file.src_uri)

    def link(mention: re.Match[str]) -> str:
        if files.get_file_from_path(mention[1]) is None:
            return mention[0]
        return f"[`{mention[1]}`]({posixpath.relpath(mention[1], here or '.')})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [_MENTION.sub(link, part) for part in parts[::2]]
    dated = _dated(page.file.src_uri) if page.file.src_uri in _DATED else ""
    return _FENCE.sub(_titled, "".join(parts)) + dated


def _dated(name: str) -> str:
    """When a page of measured figures was last changed, where the repository knows it."""
    command = ["git", "log", "-1", "--format=%as", "--", f"docs/{name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return f"\n\n*Last changed on {done.stdout.strip()}.*\n" if done.stdout.strip() else ""


def _titled(fence: re.Match[str]) -> str:
    title = fence[2].strip().replace('"', "'")
    return f'```{fence[1]} title="{title}"'
