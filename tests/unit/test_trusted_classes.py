"""A class that a folder's settings name is imported only if the user names it too, or trusts the folder."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import ccl
from ccl import UserError, catalogue, trusted_classes
from ccl.catalogue import imported, own_classes
from ccl.continual_encoder.folder import EncoderFolder
from ccl.loading import dump_settings, load_settings, parsed, read_settings

PATH = "strange:Part"
SETTINGS = ["encoder.backbone", "objective", "retention", "composition", "weight_rule", "memory.selection"]


@pytest.fixture(autouse=True)
def nobody_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new process, with a configuration of its own and a module that leaves a file where it is imported."""
    monkeypatch.setenv("CCL_CONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(trusted_classes, "_named", set())
    monkeypatch.setattr(trusted_classes, "_trusted", set())
    monkeypatch.setattr(catalogue, "UNTRUSTED", untrusted := {})
    monkeypatch.setattr(trusted_classes, "UNTRUSTED", untrusted)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "strange.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'canary')!r}).touch()\nclass Part: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "modules")
    importlib.invalidate_caches()
    yield
    importlib.sys.modules.pop("strange", None)  # type: ignore[attr-defined]


def values(setting: str, path: str = PATH) -> dict[str, Any]:
    section, _, key = setting.partition(".")
    value = {key: path} if key else [path] if setting == "retention" else path
    return {section: value}


def strange_folder(tmp_path: Path, setting: str = "encoder.backbone", path: str = PATH) -> Path:
    settings = yaml.safe_load(dump_settings(load_settings("demo")))
    for section, value in values(setting, path).items():
        settings[section] = {**settings[section], **value} if isinstance(value, dict) else value
    folder = tmp_path / "strange"
    folder.mkdir(exist_ok=True)
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    return folder


def is_refused(setting: str = "encoder.backbone", path: str = PATH) -> bool:
    try:
        imported(path, setting)
    except UserError as error:
        return "--trust" in str(error)
    return False


@pytest.mark.parametrize("path", [PATH, "strange.Part"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_reading_a_folder_imports_nothing_and_using_it_is_refused(tmp_path: Path, setting: str, path: str) -> None:
    folder = strange_folder(tmp_path, setting, path)
    settings = read_settings(folder / "settings.yaml")
    ccl.loading.validated(yaml.safe_load((folder / "settings.yaml").read_text()), written_in=folder)
    assert own_classes(read_settings(folder / "settings.yaml").model_dump()) == [(setting, path)]
    assert settings.seed == 0
    with pytest.raises(UserError, match=f"{folder}: its {setting} is {path}, and importing that would run code"):
        imported(path, setting)
    with pytest.raises(UserError, match="importing that would run code"):  # as a drop does, before any work
        ccl.loading.validated(yaml.safe_load((folder / "settings.yaml").read_text()))
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("by", ["--set", "kwargs"])
def test_what_the_user_names_is_imported(tmp_path: Path, by: str) -> None:
    trusted_classes.read_from(tmp_path, values("objective"))
    assert is_refused()
    _ = parsed([f"objective={PATH}"]) if by == "--set" else trusted_classes.named({"retention": f"der, {PATH}"})
    assert not is_refused()
    trusted_classes.read_from(tmp_path, values("objective"))
    assert not is_refused()


def new_process() -> None:
    for state in (trusted_classes._named, trusted_classes._trusted, catalogue.UNTRUSTED):
        state.clear()


def test_trust_is_remembered_by_identity_and_class(tmp_path: Path) -> None:
    ccl.trust(tmp_path / "strange")
    trusted_classes.read_from(tmp_path / "strange", values("objective"), "one")
    assert not is_refused()

    def refused_in_another_process(folder: str, path: str, identity: str) -> bool:
        new_process()
        trusted_classes.read_from(tmp_path / folder, values("objective", path), identity)
        return is_refused(path=path)

    assert not refused_in_another_process("moved", PATH, "one")
    assert refused_in_another_process("strange", PATH, "two")
    assert refused_in_another_process("strange", "os:Other", "one")
    assert not refused_in_another_process("strange", PATH, "one")


def test_the_folder_of_who_names_the_class_is_trusted_later(tmp_path: Path) -> None:
    trusted_classes.named(values("weight_rule"))
    trusted_classes.read_from(tmp_path / "mine", values("weight_rule"))
    new_process()
    trusted_classes.read_from(tmp_path / "elsewhere" / ".." / "mine", values("weight_rule"))
    assert not is_refused()


def test_encoder_folders(tmp_path: Path) -> None:
    """Who made one is not asked later; what a version says was asked for is no way around."""
    (tmp_path / "modules" / "strange.py").write_text("from torch import nn\nclass Part(nn.Module): pass\n")
    ccl.ContinualEncoder.create(tmp_path / "mine", encoder={"backbone": PATH})
    new_process()
    EncoderFolder(tmp_path / "mine").ledger()
    assert not is_refused()
    new_process()
    about = {"settings": yaml.safe_load(dump_settings(load_settings("demo"))), "asked": values("objective")}
    EncoderFolder(tmp_path / "strange").settings(about)
    assert is_refused()


@pytest.mark.parametrize("content", ["", "[]", '{"one": 1}', '{"one": [{}]}', "[" * 100_000, '{"one": ["a:B"]}'])
def test_a_damaged_memory_is_asked_for_again(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "trusted.json").write_text(content)
    trusted_classes.read_from(tmp_path, values("objective"), "one")
    assert is_refused()
    ccl.trust(tmp_path)
    trusted_classes.read_from(tmp_path, values("objective"), "one")
    new_process()
    trusted_classes.read_from(tmp_path, values("objective"), "one")
    assert not is_refused()
    assert PATH in json.loads((tmp_path / "config" / "trusted.json").read_text())["one"]


def test_without_a_place_to_remember(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("a file")
    ccl.trust(tmp_path)
    trusted_classes.read_from(tmp_path, values("objective"))
    assert not is_refused()
    new_process()
    trusted_classes.read_from(tmp_path, values("objective"))
    assert is_refused()
    monkeypatch.delenv("CCL_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    ccl.trust(tmp_path)
    trusted_classes.read_from(tmp_path, values("objective"))
    assert (tmp_path / "xdg" / "ccl" / "trusted.json").exists()
