"""The examples run as they are printed."""

import subprocess
import sys
from pathlib import Path

import pytest
from real_data import root_with

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.needs_data
def test_the_cifar_stream_from_parts() -> None:
    data = root_with("cifar-100-python")
    script = ROOT / "examples" / "cifar100_stream.py"
    done = subprocess.run([sys.executable, script, data, "1"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == [f"after step {step}" for step in range(1, 6)]
    assert lines[-1].endswith(" %, 400 images kept")


@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.timeout(900)
def test_five_weeks_of_drops_end_with_a_search_page(tmp_path: Path) -> None:
    data = root_with("cifar-100-python")
    script = ROOT / "examples" / "weekly_drops.py"
    done = subprocess.run([sys.executable, script, data, tmp_path, "1"], capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("week-") and "version" in line for line in done.stdout.splitlines()) == 5
    assert not list(tmp_path.glob("week-*"))
    assert (tmp_path / "search.html").read_text().count("data:image") >= 50
    assert "week-5" in (tmp_path / "encoder" / "report.html").read_text()
