"""The reference that `make docs` makes: every setting, every command and every public name is in it, as it is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT

import ccl
from ccl.loading import setting_names

sys.path.insert(0, str(ROOT / "docs" / "generate"))

import api_page
import commands_page
import loop_drawing
import settings_page


def test_every_setting_has_an_entry_with_words() -> None:
    entries = {entry.name: entry for rows in settings_page.entries().values() for entry in rows}
    assert sorted(entries) == sorted(setting_names())
    silent = [name for name, entry in entries.items() if not entry.words]
    assert not silent, f"give these settings a comment: {', '.join(silent)}"
    page = settings_page.page()
    assert all(f"| `{name}` |" in page for name in entries)


def test_entries_have_the_values_of_the_models_and_presets() -> None:
    entries = {entry.name: entry for rows in settings_page.entries().values() for entry in rows}
    queue, weight = entries["moco_v2.queue_size"], entries["weights.contrast"]
    assert (queue.kind, queue.default, queue.paper) == ("integer, ≥ 1", "`4096`", "`4096`; ImageNet `65536`")
    assert (weight.kind, weight.default, weight.paper) == ("number, ≥ 0", "`0.9`", "`0.9`")
    assert (entries["seed"].default, entries["data.download"].default) == ("`0`", "`false`")
    assert entries["optimizer.name"].kind == "`sgd`, `lars`, `adamw`"
    assert entries["data.stream"].words.startswith("How the images are cut in steps (docs/streams.md)")
    assert entries["share.old"].kind == "number, ≥ 0, < 1"


def test_every_command_with_every_option_is_in_the_reference() -> None:
    page = commands_page.page()
    commands = commands_page.commands()
    assert re.findall(r"^## ccl (\w+)$", page, re.MULTILINE) == list(commands)
    for section, command in zip(page.split("\n## ")[1:], commands.values(), strict=True):
        for parameter in command.params:
            if parameter.name != "help":
                assert parameter.help.replace("|", "&#124;") in section
    assert "| `--seed` | Class order, initialisation and all draws. | `0` |" in page


def test_every_public_name_is_in_the_reference() -> None:
    page = api_page.page()
    for name, home in ccl._homes().items():
        assert f"::: {home}.{name}\n" in page, name
    for package in api_page.subpackages():
        module = getattr(ccl, package)
        assert all(hasattr(module, name) for name in api_page.members(package))
    assert "::: ccl.losses.info_nce\n" in page


def test_the_drawing_is_the_one_that_its_script_makes() -> None:
    assert loop_drawing.TARGET.read_text(encoding="utf-8") == loop_drawing.drawing()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="make docs installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", ROOT / "mkdocs.yml", "-d", tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    fetched = re.compile(r'(?:src="|<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href=")(https?:[^"]+)')
    assert not [match for page in pages for match in fetched.findall(page.read_text(encoding="utf-8"))]
