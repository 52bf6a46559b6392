"""Whole runs: image folders decoded by workers, unlabelled folders, what is written and what is refused."""

import csv
from pathlib import Path

import pytest
import torch
from breaking import listening, quiet
from PIL import Image
from safetensors.torch import load_file

from ccl import run
from ccl.encoders import Encoder
from ccl.errors import UserError
from ccl.loading import load_settings
from ccl.runs.run_folder import read_run

FOLDER = (
    *("epochs=1", "steps=2", "batch_size=4", "views.size=24", "encoder.backbone=convnet", "encoder.width=4"),
    *("encoder.dim=8", "moco_v2.queue_size=8", "extra_sample_queue.size=4", "memory.per_cluster=2", "device=cpu"),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two splits of four classes of pictures of odd sizes."""
    noise = torch.Generator().manual_seed(0)
    for split, count in (("train", 5), ("val", 2)):
        for label in range(4):
            folder = tmp_path / "images" / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                size = (20 + 7 * number + label, 31 - 3 * number)
                pixels = torch.randint(256, (size[1], size[0], 3), generator=noise, dtype=torch.uint8).numpy()
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return tmp_path / "images"


def test_files_are_decoded_by_workers_and_kept_as_they_are(tree: Path, tmp_path: Path) -> None:
    outcomes = []
    for workers in (0, 2):
        settings = load_settings("folder", [*FOLDER, f"data.root={tree}", f"data.workers={workers}"])
        record = run(settings, tmp_path / f"out{workers}", quiet())
        assert not torch.isnan(record.accuracy.per_step).any()
        outcomes.append(load_file(record.folder / "encoder.safetensors"))
        kept = {path.read_bytes() for path in (record.folder / "memory").glob("*.jpg")}
        assert len(kept) == 8
        assert kept <= {path.read_bytes() for path in (tree / "train").rglob("*.jpg")}
    assert all(torch.equal(outcomes[0][name], value) for name, value in outcomes[1].items())


def test_bad_files_are_left_out_and_listed(tree: Path, tmp_path: Path) -> None:
    for label in range(4):  # of 20 + 1 files, so that one bad is below 5 %
        for number in range(5, 11):
            (tree / "train" / f"class{label}" / f"{number}.jpg").write_bytes(
                (tree / "train" / f"class{label}" / "0.jpg").read_bytes()
            )
    (tree / "train" / "class0" / "page.jpg").write_text("<html>not an image</html>")
    record = run(load_settings("folder", [*FOLDER, f"data.root={tree}", "data.workers=0"]), tmp_path / "out", quiet())
    with (record.folder / "bad_images.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["path"]).name for row in rows] == ["page.jpg"]
    assert record.status["state"] == "complete"


def test_an_unlabelled_folder_is_one_step_without_accuracy(tree: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted((tree / "train").rglob("*.jpg"))):
        path.rename(flat / f"{number}.jpg")
    options = [*FOLDER, f"data.root={flat}", "steps=1", "data.resize=24", "strategy=ccl"]
    with pytest.raises(UserError, match=r"set memory\.clusters"):
        run(load_settings("folder", options), tmp_path / "out", quiet())
    record = run(load_settings("folder", [*options, "memory.clusters=3"]), tmp_path / "out", quiet())
    assert record.accuracy is None
    assert record.status["state"] == "complete"
    with pytest.raises(UserError, match="set steps=1"):
        run(load_settings("folder", [*options, "steps=2"]), tmp_path / "other", quiet())


def test_a_failed_run_says_so_and_the_same_call_goes_on(tree: Path, tmp_path: Path) -> None:
    settings = load_settings("folder", [*FOLDER, f"data.root={tree}", "data.resize=24"])
    display = quiet()

    def fail(*_: object) -> None:
        raise RuntimeError("the disk is on fire")

    display.epoch_ends = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        run(settings, tmp_path / "out", display)
    status = read_run(tmp_path / "out").status
    assert (status["state"], status["reason"]) == ("failed", "the disk is on fire")
    assert run(settings, tmp_path / "out", quiet()).status["state"] == "complete"


def test_upper_bound_writes_the_last_row_only(tree: Path, tmp_path: Path) -> None:
    settings = load_settings("folder", [*FOLDER, f"data.root={tree}", "data.resize=24", "strategy=upper_bound"])
    record = run(settings, tmp_path / "out", quiet())
    assert torch.isnan(record.accuracy.per_step).all(dim=1).tolist() == [True, False]
    assert not torch.isnan(record.accuracy.random_per_step).any()


def test_a_collapsed_embedding_is_warned_of(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features that all fall together while the loss may look fine."""
    settings = load_settings("folder", [*FOLDER, f"data.root={tree}", "data.resize=24", "strategy=finetuning"])
    monkeypatch.setattr(Encoder, "forward", lambda self, images: collapsed(self.head(self.features(images))))
    display, notes = listening()
    run(settings, tmp_path / "out", display)
    warned = [note for note in notes if "looks collapsed" in note]
    assert len(warned) == 2
    assert "nearly the same embedding" in warned[0]


def collapsed(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(1e-4 * rows + 1.0, dim=1)
