"""Wheel and sdist: they build, hold what the program needs, and the wheel works in an environment of its own."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from doc_blocks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_is_promised_was_run() -> None:
    """Python and torch as the README says and constraints.txt pins them."""
    pins = (ROOT / "constraints.txt").read_text()
    assert re.findall(r"Python :: (3\.\d+)", str(PROJECT["classifiers"])) == ["3.11"]
    assert "torch>=2.13" in PROJECT["dependencies"]
    assert "torch==2.13" in pins
    assert "tested with 3.11, torch 2.13" in (ROOT / "README.md").read_text()


def test_versions_agree() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == PROJECT["version"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": "make test"}


def test_constraints_with_hashes_name_the_same_versions() -> None:
    """And all that the program needs, which pip asks for where hashes are required."""
    plain, hashed = ((ROOT / f"constraints{kind}.txt").read_text() for kind in ("", "-hashed"))
    rows = re.findall(r"^([\w.-]+==\S+)( --hash=sha256:[0-9a-f]{64})?$", hashed, re.MULTILINE)
    assert {row for row, _ in rows} <= set(plain.splitlines())
    assert all(with_hash for _, with_hash in rows)
    names = {row.partition("==")[0].lower() for row, _ in rows}
    assert names >= {re.split(r"[>=]", needed)[0].lower() for needed in PROJECT["dependencies"]}
    assert {"narwhals==", "cloudpickle==", "setuptools=="} <= set(re.findall(r"^[\w.-]+==", plain, re.MULTILINE))


def built(kind: str, out: Path) -> Path:
    code = f"from hatchling.build import build_{kind}; print(build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="part of the extra dev")
    return built("wheel", tmp_path_factory.mktemp("dist"))


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_page_has_no_broken_link(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [about] = [name for name in names if name.endswith("/METADATA")]
        metadata = archive.read(about).decode()
    package = ROOT / "src" / "ccl"
    wanted = [path for path in package.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    assert {str(path.relative_to(package.parent)) for path in wanted} == {
        name for name in names if name.startswith("ccl/")
    }
    assert not re.search(r"\]\((?!https:)", metadata)
    assert "# ccl: continual contrastive learning" in metadata
    assert "what was measured (`docs/results.md`)" in metadata
    assert str(ROOT) not in metadata


@pytest.mark.slow
def test_the_sdist_holds_sources_tests_and_pages(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="part of the extra dev")
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"src/ccl/presets/demo.yaml", "tests/conftest.py", "docs/index.md", "Makefile", "LICENSE"}
    assert "package_page.py" in names
    assert not [name for name in names if name.startswith((".venv", "site/", "demo-run"))]


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    own = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    python, environment = home / "bin" / "python", {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True, env=environment)
    # What it depends on comes from here, after its own folder: tests download nothing.
    (own / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))

    def output(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = output(python, "-c", "import ccl, json; print(json.dumps([ccl.__file__, ccl.__version__]))")
    assert json.loads(where) == [str(own / "ccl" / "__init__.py"), PROJECT["version"]]
    assert output(home / "bin" / "ccl", "--version").startswith(f"ccl {PROJECT['version']}, torch ")
    assert "simple_rehearsal" in output(home / "bin" / "ccl", "methods")
    code = "import ccl; print(ccl.load_settings('demo').encoder.backbone)"
    assert output(python, "-c", code).strip() == "convnet"
