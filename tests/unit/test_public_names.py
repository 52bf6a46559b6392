"""What `import ccl` promises: every public name, found at once, without torch until it is used, with an example."""

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import ccl

MODULES = {
    *("composition", "continual_encoder", "data", "encoders", "evaluation", "losses", "memory", "objectives", "part"),
    *("report", "retention", "runs", "training", "views", "weight_rules"),
}
# In an order in which each may use what those before it left in the folder.
NAMES = [
    *("ContinualEncoder", "frozen", "frozen_start", "FrozenEncoder", "EncoderTransformer", "load_dataset", "gather"),
    *("UserError", "load_settings", "Settings", "run", "read_run", "RunRecord", "write_features", "read_features"),
    *("stored_collection", "Collection"),
    *("find_similar", "write_sheet", "probe", "save_classifier", "load_classifier", "predict", "export"),
    *("load_backbone", "write_card", "trust"),
]
# What the outside calls, in the subpackages.
DEEPER = [
    *("losses.info_nce", "losses.nt_xent", "losses.similarity_distillation", "memory.FeatureQueue"),
    *("memory.lowest_view_variance", "encoders.MomentumEncoder", "evaluation.forgetting"),
    *("evaluation.forward_transfer", "data.class_incremental", "ContinualEncoder.create"),
]


def test_the_list_is_the_promise() -> None:
    assert sorted(ccl.__all__) == sorted([*MODULES, *NAMES, "__version__"])
    assert set(ccl.__all__) <= set(dir(ccl))
    assert all(inspect.ismodule(getattr(ccl, name)) for name in MODULES)
    with pytest.raises(AttributeError, match="no attribute 'ContinualEncodr'"):
        ccl.ContinualEncodr  # noqa: B018


def test_a_name_is_the_very_object_of_its_home() -> None:
    for name, home in ccl._homes().items():
        assert getattr(ccl, name) is getattr(importlib.import_module(home), name)


def test_the_version_is_that_of_the_installed_package() -> None:
    from importlib.metadata import version

    assert ccl.__version__ == version("ccl")


def test_importing_loads_no_torch_numpy_or_pydantic() -> None:
    code = "import sys, ccl; dir(ccl), ccl.__version__, ccl.UserError"
    code += "; print(sorted({'torch', 'numpy', 'pydantic', 'yaml', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_editor_and_a_type_checker_see_every_name() -> None:
    """They read the imports under TYPE_CHECKING, and re-export a name only as itself."""
    [block] = [node for node in ast.parse(Path(ccl.__file__).read_text()).body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    found = [alias for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(alias.name for alias in found) == sorted([*MODULES, *NAMES])
    assert all(alias.asname == alias.name for alias in found)


def test_every_public_name_has_an_example_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    names = {"ccl": ccl, "torch": torch, "Path": Path, "Image": Image}
    for dotted in [*NAMES, *DEEPER]:
        thing: object = ccl
        for part in dotted.split("."):
            thing = getattr(thing, part)
        found = finder.find(thing, dotted, module=False, globs=dict(names))
        assert sum(len(test.examples) for test in found) > 0, f"{dotted} has no example"
        for test in found:
            said: list[str] = []
            runner.run(test, out=said.append)
            assert not said, "".join(said)
