"""Every kind of stream from settings to a finished run: what is learned, what is probed, what is refused."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console
from tiny import TINY

from ccl import run
from ccl.data import class_incremental
from ccl.errors import UserError
from ccl.loading import load_settings
from ccl.report.arm_table import stamp
from ccl.runs.display import PlainDisplay
from ccl.runs.forecast import step_sizes
from ccl.runs.one_run import worth_knowing
from ccl.runs.stream_builder import Stream, build_stream

SMALL = (
    *(*TINY, "data.images_per_class=10", "epochs=1", "batch_size=10", "moco_v2.queue_size=16", "memory.per_cluster=1"),
    "device=cpu",
)
KINDS = {
    "data": ("data.stream=data", "steps=4"),
    "blurred": ("data.stream=blurred", "steps=4", "data.mixing=0.5"),
    "free": ("data.stream=free", "data.chunk=18"),
}
SIZES = {"data": [20] * 4, "blurred": [20] * 4, "free": [18, 18, 18, 26]}  # a rest of 8 can't fill a batch of 10


def build(*assignments: str) -> Stream:
    return build_stream(load_settings("demo", [*SMALL, *assignments]))


@pytest.fixture
def unlabelled(tmp_path: Path) -> str:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(23):
        Image.new("RGB", (20, 20), (11 * number, 255 - 11 * number, 90)).save(folder / f"{number:02}.png")
    return f"data.root={folder}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_training_image_is_learned_and_probed_once_and_every_test_image_tested_once(kind: str) -> None:
    stream = build(*KINDS[kind])
    assert [len(source) for source in stream.arrivals] == SIZES[kind]
    for sources, whole in (
        (stream.arrivals, stream.dataset.train),
        ([part.train for part in stream.probe_parts], stream.dataset.train),
        ([part.test for part in stream.probe_parts], stream.dataset.test),
    ):
        assert sorted(torch.cat([source.ids for source in sources]).tolist()) == whole.ids.tolist()
    labels = stream.dataset.train_labels
    present = [len(labels[source.ids].unique()) for source in stream.arrivals]  # ids count from 0, as positions
    assert stream.num_clusters == present == [len(step.classes) for step in stream.steps]
    for part in stream.probe_parts:
        assert part.train_labels.tolist() == labels[part.train.ids].tolist()


def test_parts_of_random_and_drifting_streams_are_the_steps_and_test_images_of_the_same_stretch() -> None:
    for kind in ("data", "free"):
        stream = build(*KINDS[kind])
        for source, part in zip(stream.arrivals, stream.probe_parts, strict=True):
            assert part.train.ids.tolist() == source.ids.tolist()
            share = len(part.test) / sum(len(other.test) for other in stream.probe_parts)
            assert share == pytest.approx(len(source) / 80, abs=0.01)
    sharp = build("data.stream=free", "data.chunk=10", "data.mixing=0")  # a class a chunk
    for part in sharp.probe_parts:
        assert len(part.train_labels.unique()) == 1
        assert part.test_labels.unique().tolist() == part.train_labels.unique().tolist()
    assert all(len(part.test_labels.unique()) == 8 for part in build(*KINDS["data"]).probe_parts)


def test_a_blurred_stream_is_probed_as_a_sharp_one() -> None:
    sharp, blurred = build("data.stream=class", "steps=4"), build(*KINDS["blurred"])
    assert [source.ids.tolist() for source in sharp.arrivals] != [source.ids.tolist() for source in blurred.arrivals]
    for one, other in zip(sharp.probe_parts, blurred.probe_parts, strict=True):
        assert one.train.ids.tolist() == other.train.ids.tolist()
        assert one.test.ids.tolist() == other.test.ids.tolist()
    none = build("data.stream=blurred", "steps=4", "data.mixing=0")
    assert [source.ids.tolist() for source in sharp.arrivals] == [source.ids.tolist() for source in none.arrivals]
    labels = blurred.dataset.train_labels
    own = class_incremental(labels, 4, 0)
    for step, home in zip(blurred.steps, own, strict=True):
        assert len(set(step.indices.tolist()) & set(home.indices.tolist())) == 10


def test_defaults_of_mixing_and_chunk() -> None:
    for kind in ("blurred", "free"):
        given, left_out = build(f"data.stream={kind}", "data.mixing=0.2"), build(f"data.stream={kind}")
        assert [source.ids.tolist() for source in given.arrivals] == [
            source.ids.tolist() for source in left_out.arrivals
        ]
    assert [len(source) for source in build("data.stream=free").arrivals] == [16] * 5
    assert [len(source) for source in build("data.stream=free", "steps=7").arrivals] == [12, 12, 12, 11, 11, 11, 11]
    assert len(build(*KINDS["free"], "steps=4").arrivals) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_may_have_a_seed_of_its_own(kind: str) -> None:
    def order(*assignments: str) -> list[list[int]]:
        stream = build(*KINDS[kind], *assignments)
        return [source.ids.tolist() for source in [*stream.arrivals, *(part.test for part in stream.probe_parts)]]

    assert order("seed=5", "data.seed=1") == order("seed=9", "data.seed=1") == order("seed=1")
    assert order("seed=1", "data.seed=2") != order("seed=1") != order("seed=2")


def test_upper_bound_learns_any_stream_at_once() -> None:
    for settings in KINDS.values():
        stream = build(*settings, "strategy=upper_bound")
        assert [len(source) for source in stream.arrivals] == [80]
        assert len(stream.probe_parts) == 4


def test_estimates_of_sets_that_are_known_by_name() -> None:
    def sizes(*changes: str) -> tuple[list[int], list[int]]:
        return step_sizes(load_settings("cifar100", list(changes)))

    assert sizes("data.stream=data", "steps=8") == ([6250] * 8, [100] * 8)
    assert sizes("data.stream=blurred") == ([10_000] * 5, [100] * 5)
    assert sizes("data.stream=blurred", "data.mixing=0") == ([10_000] * 5, [20] * 5)
    images, classes = sizes("data.stream=free", "data.chunk=12000", "data.mixing=0.1", "steps=null")
    assert images == [12_000, 12_000, 12_000, 12_000, 2000]
    assert all(24 < count < 60 for count in classes[:4])


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_run(kind: str, tmp_path: Path) -> None:
    settings = load_settings("demo", [*SMALL, *KINDS[kind]])
    record = run(settings, tmp_path / "out", PlainDisplay(Console(quiet=True)))
    assert not torch.isnan(record.accuracy.per_step).any()
    assert record.protocol["stream"] == kind
    assert [step["num_images"] for step in record.protocol["steps"]] == SIZES[kind]
    assert record.num_test_images == [len(part.test) for part in build(*KINDS[kind]).probe_parts]
    assert [row["num_new"] for row in record.rows if row["kind"] == "step"] == SIZES[kind]
    assert stamp(record)["stream"] == kind


def test_a_person_is_told_how_to_read_the_matrix() -> None:
    for kind, words in {"data": "random parts", "blurred": "own classes", "free": "drifting"}.items():
        settings = load_settings("demo", [*SMALL, *KINDS[kind]])
        lines = worth_knowing(settings, build_stream(settings))
        assert lines[0] == f"symbols+textures: 80 images of 8 classes in 4 steps{lines[0].split('steps')[1]}"
        assert any(words in line and "docs/streams.md" in line for line in lines)
    settings = load_settings("demo", [*SMALL, "data.stream=class"])
    assert not any("docs/streams.md" in line for line in worth_knowing(settings, build_stream(settings)))


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (["data.mixing=0.3"], "data.mixing is for data.stream=blurred or free, not domain; set data.stream=blurred"),
        (["data.stream=data", "data.mixing=0"], "not data; set data.stream=blurred"),
        (["data.stream=class", "data.chunk=30"], "data.chunk is for data.stream=free, not class; set steps instead"),
        (["data.stream=blurred", "data.mixing=1.5"], "data.mixing: Input should be less than or equal to 1, got 1.5"),
        (["data.stream=free", "data.chunk=0"], "data.chunk: Input should be greater than or equal to 1, got 0"),
        (["data.stream=blured"], "'data', 'blurred' or 'free', got 'blured'"),
        (["data.stream=data", "steps=90"], "80 images can't be cut in 90 steps; nearest valid value: 80"),
        (["data.stream=free", "steps=90"], "80 images can't be cut in 90 steps; nearest valid value: 80"),
        (["data.stream=data", "steps=9"], "batch_size 10 exceeds the 8 images of step 9; nearest valid value: 8"),
        (["data.stream=blurred", "steps=9"], "8 classes can't be cut in 9 steps; nearest valid value: 8"),
        (
            ["data.stream=free", "data.chunk=40", "steps=3"],
            "steps is 3, but 80 images in chunks of 40 are 2 steps; set steps=2",
        ),
        (["data.stream=free", "data.chunk=6"], "batch_size 10 exceeds the 6 images of step 1"),
    ],
)
def test_what_contradicts_itself_is_told_in_one_line(assignments: list[str], told: str) -> None:
    with pytest.raises(UserError) as caught:
        build(*assignments)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def of_folder(root: str, *assignments: str) -> Stream:
    plain = [change for change in SMALL if not change.startswith(("dataset", "data.classes", "data.images"))]
    fixed = ["dataset=folder", root, "batch_size=5", "memory.clusters=2"]
    return build_stream(load_settings("demo", [*plain, *fixed, *assignments]))


def test_images_without_labels_come_in_random_parts(unlabelled: str) -> None:
    parts = of_folder(unlabelled, "data.stream=data", "steps=4")
    assert [len(source) for source in parts.arrivals] == [6, 6, 6, 5]
    assert parts.num_clusters == [2] * 4
    assert parts.probe_parts == []
    chunks = of_folder(unlabelled, "data.stream=free", "data.chunk=7")
    assert [len(source) for source in chunks.arrivals] == [7, 7, 9]
    ids = torch.cat([source.ids for source in chunks.arrivals])
    assert sorted(ids.tolist()) == list(range(23))
    assert ids.tolist() != list(range(23))


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (["steps=4"], "images without labels can't be cut by class; set steps=1 or data.stream=data"),
        (["data.stream=blurred"], "images without labels can't be cut by class; set data.stream=data"),
        (["data.stream=free", "data.mixing=0.5"], "images without labels come in random order; leave data.mixing out"),
        (["data.stream=data", "steps=4", "memory.clusters=null"], "no labels to count classes by; set memory.clusters"),
    ],
)
def test_what_needs_labels_says_so(unlabelled: str, assignments: list[str], told: str) -> None:
    with pytest.raises(UserError) as caught:
        of_folder(unlabelled, *assignments)
    assert told in str(caught.value)


def test_more_steps_than_test_images_are_refused_where_they_would_be_probed(tmp_path: Path) -> None:
    for split, count in (("train", 12), ("val", 1)):
        for label in ("a", "b"):
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (16, 16), (9 * number, 40, 0)).save(tmp_path / split / label / f"{number}.png")
    root = f"data.root={tmp_path}"
    with pytest.raises(UserError, match="step 1 has no test images to be probed on; set fewer steps"):
        of_folder(root, "data.stream=data", "steps=4")
    assert len(of_folder(root, "data.stream=data", "steps=4", "probe.after=never").arrivals) == 4
    assert [len(part.test) for part in of_folder(root, "data.stream=data", "steps=2").probe_parts] == [1, 1]
