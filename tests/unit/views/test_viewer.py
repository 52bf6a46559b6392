"""Views as a pure function of seed, moment, image, turn and view, whatever the source or the workers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ccl.data.image_sources import ArraySource, EncodedSource, FileSource, ImageSource, JoinedSource
from ccl.views import RECIPES, Viewer
from ccl.views.loader_workers import Cutting

EVERYTHING = replace(RECIPES["moco_cifar"], blur_probability=0.5, solarise_probability=0.3)  # all operations
GEOMETRY = RECIPES["moco_cifar"].for_probe()


def _source(count: int = 40, height: int = 32, width: int = 32) -> ArraySource:
    # Smooth pictures, because files are compared with arrays after different roundings.
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(count, 3, 5, 5, generator=generator) * 255
    images = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear").to(torch.uint8)
    return ArraySource(images, torch.arange(count) * 7 + 3)


def _views(viewer: Viewer, source: ArraySource, positions: list[int], view: int = 0, **options: object) -> Tensor:
    moment = options.get("moment", (1, 2))
    (batch,) = viewer.batches(source, [torch.tensor(positions)], moment=moment, num_views=view + 1)
    return batch.views[view]


def test_a_view_follows_the_id_and_not_the_position() -> None:
    viewer, source = Viewer(EVERYTHING, seed=4), _source()
    part = source.subset(torch.tensor([8, 2]))
    assert torch.equal(_views(viewer, part, [1, 0]), _views(viewer, source, [2, 8]))


def test_another_seed_moment_view_or_image_gives_another_view() -> None:
    source = ArraySource(_source(1).images.expand(12, -1, -1, -1).contiguous())
    rows = list(range(12))
    base = _views(Viewer(EVERYTHING, 4), source, rows)
    others = [
        _views(Viewer(EVERYTHING, 5), source, rows),
        _views(Viewer(EVERYTHING, 4), source, rows, moment=(1, 3)),
        _views(Viewer(EVERYTHING, 4), source, rows, moment=(2, 2)),
        _views(Viewer(EVERYTHING, 4), source, rows, view=1),
        base.roll(1, 0),
    ]
    for other in others:
        assert ((other - base).abs().amax((1, 2, 3)) > 0.01).all()


@pytest.mark.parametrize("form", ["arrays", "files"])
def test_an_image_seen_again_looks_different_by_its_turn_and_turn_0_is_none(form: str, tmp_path: Path) -> None:
    arrays = _source(6)
    source = arrays if form == "arrays" else _files(arrays, tmp_path)
    batches = [torch.tensor([4, 1, 4, 4]), torch.tensor([1, 0])]
    turns = [torch.tensor([0, 0, 1, 2]), torch.tensor([1, 0])]
    viewer = Viewer(EVERYTHING, 4)
    first, second = viewer.batches(source, batches, moment=(1, 2), num_views=2, turns=turns)
    assert [batch.turns.tolist() for batch in (first, second)] == [[0, 0, 1, 2], [1, 0]]
    (once,) = viewer.batches(source, [torch.arange(6)], moment=(1, 2), num_views=2)
    for view in range(2):
        assert torch.equal(first.views[view][:2], once.views[view][[4, 1]])
        assert torch.equal(second.views[view][1], once.views[view][0])
        for one, other in ((0, 2), (0, 3), (2, 3)):
            assert (first.views[view][one] - first.views[view][other]).abs().max() > 0.01
        assert (second.views[view][0] - first.views[view][1]).abs().max() > 0.01


def test_a_view_with_a_turn_does_not_depend_on_its_batch_or_the_workers(tmp_path: Path) -> None:
    arrays, positions, turns = _source(5), torch.tensor([3, 3, 0, 3, 2]), torch.tensor([2, 0, 1, 1, 0])
    for source, num_workers in ((arrays, 0), (_files(arrays, tmp_path), 0), (_files(arrays, tmp_path), 2)):
        viewer = Viewer(EVERYTHING, 4, num_workers=num_workers)
        (together,) = viewer.batches(source, [positions], num_views=1, turns=[turns])
        alone = viewer.batches(source, positions.split(1), num_views=1, turns=turns.split(1))
        assert torch.equal(torch.cat([batch.views[0] for batch in alone]), together.views[0])


def test_turns_of_files_are_those_of_arrays(tmp_path: Path) -> None:
    source, positions, turns = _source(6), torch.tensor([5, 5, 1]), torch.tensor([0, 3, 1])
    recipe = replace(GEOMETRY, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    (arrays,) = Viewer(recipe, 3).batches(source, [positions], num_views=1, turns=[turns])
    (files,) = Viewer(recipe, 3).batches(_files(source, tmp_path), [positions], num_views=1, turns=[turns])
    assert (arrays.views[0] - files.views[0]).abs().max() <= 1.5 / 255


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    viewer = Viewer(EVERYTHING, 0)
    list(viewer.batches(_files(_source(3), tmp_path), [torch.arange(3)], num_views=1))
    list(viewer.batches(_source(3), [torch.arange(3)], num_views=1))
    assert torch.equal(torch.get_rng_state(), before)


def _files(source: ArraySource, folder: Path) -> FileSource:
    paths = [folder / f"{position}.png" for position in range(len(source))]
    for position, path in enumerate(paths):
        path.write_bytes(source.encoded(position))
    return FileSource(paths, source.ids)


@pytest.mark.parametrize(("height", "width"), [(84, 84), (32, 32), (50, 84), (1, 1), (1, 5000)])
def test_files_and_arrays_of_the_same_pictures_look_alike(tmp_path: Path, height: int, width: int) -> None:
    source = _source(12, height, width)
    recipe = replace(GEOMETRY, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), plain_fraction=0.875)
    everything = [torch.arange(12)]
    mask = torch.ones(12, dtype=torch.bool)
    viewer = Viewer(recipe, 3)
    (arrays,) = viewer.batches(source, everything, moment=(1,), num_views=2, plain=mask)
    (files,) = viewer.batches(_files(source, tmp_path), everything, moment=(1,), num_views=2, plain=mask)
    for one, other in zip((*arrays.views, arrays.plain), (*files.views, files.plain), strict=True):
        assert one.shape == other.shape == (12, 3, 32, 32)
        assert (one - other).abs().max() <= 1.5 / 255


def test_colour_and_blur_of_files_are_those_of_arrays(tmp_path: Path) -> None:
    source = _source(12)
    recipe = replace(EVERYTHING, crop="whole", jitter_probability=1.0)  # whole: the crop is exact in both
    (arrays,) = Viewer(recipe, 3).batches(source, [torch.arange(12)], num_views=1)
    (files,) = Viewer(recipe, 3).batches(_files(source, tmp_path), [torch.arange(12)], num_views=1)
    assert torch.allclose(arrays.views[0], files.views[0], atol=1e-5)


def test_plain_gives_the_asked_rows_in_the_batchs_order() -> None:
    source = _source(20)
    mask = torch.zeros(20, dtype=torch.bool)
    mask[[2, 5, 11]] = True
    batches = [torch.tensor([5, 7, 2]), torch.tensor([1, 3]), torch.tensor([11])]
    given = list(Viewer(EVERYTHING, 0).batches(source, batches, plain=mask))
    mean = torch.tensor(EVERYTHING.mean)[:, None, None]
    std = torch.tensor(EVERYTHING.std)[:, None, None]
    expected = (source.images / 255 - mean) / std
    for batch, rows in zip(given, ([5, 2], [], [11]), strict=True):
        assert batch.views == ()
        assert batch.plain.shape == (len(rows), 3, 32, 32)
        assert torch.allclose(batch.plain, expected[rows], atol=1e-5)


def test_plain_batches_show_all_images_in_order(tmp_path: Path) -> None:
    source = _source(10)
    for form in (source, _files(source, tmp_path)):
        batches = list(Viewer(EVERYTHING, 0).plain_batches(form, 4))
        assert [len(batch) for batch in batches] == [4, 4, 2]
        whole = Viewer(RECIPES["plain"], 0)
        assert torch.allclose(torch.cat(batches), _views(whole, source, list(range(10))), atol=1e-6)


def test_sources_of_mixed_form_and_empty_batches() -> None:
    arrays = _source(4, 32, 32)
    past = EncodedSource([_source(3, 60, 40).encoded(row) for row in range(3)], torch.tensor([100, 101, 102]))
    joined = JoinedSource([arrays, past])
    batches = [torch.tensor([6, 0]), torch.tensor([], dtype=torch.long)]
    for source in (joined, _source(7)):
        first, empty = Viewer(EVERYTHING, 0).batches(source, batches, num_views=1)
        assert first.views[0].shape == (2, 3, 32, 32)
        assert empty.views[0].shape == empty.plain.shape == (0, 3, 32, 32)


@pytest.mark.parametrize("block", [1, 100_000, 300_000, 2**23])
@pytest.mark.parametrize("form", ["arrays", "files"])
def test_views_of_a_block_are_those_of_its_batches(
    form: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = _source(23)
    source = arrays if form == "arrays" else _files(arrays, tmp_path)
    viewer, sizes, is_plain = Viewer(EVERYTHING, 4), [5, 4, 7, 0, 6, 1], torch.arange(23) % 3 == 0
    batches = torch.randperm(23, generator=torch.Generator().manual_seed(1)).split(sizes)
    turns = [positions % 2 for positions in batches]
    asked: dict[str, Any] = {"moment": (1, 2), "num_views": 2, "num_further": 1, "plain": is_plain}
    chosen = [~is_plain[rows] for rows in batches]
    alone = [
        next(viewer.batches(source, [rows], turns=[turn], further=[some], **asked))
        for rows, turn, some in zip(batches, turns, chosen, strict=True)
    ]
    monkeypatch.setattr("ccl.views.viewer._BLOCK_BYTES", block)
    monkeypatch.setattr("ccl.views.viewer._WORKER_BLOCK_BYTES", block)
    found = list(viewer.batches(source, batches, turns=turns, further=chosen, **asked))
    assert [len(batch.ids) for batch in found] == sizes
    for mine, theirs in zip(found, alone, strict=True):
        for name in ("positions", "ids", "plain"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name))
        for one, other in zip((*mine.views, *mine.further), (*theirs.views, *theirs.further), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("form", ["arrays", "files"])
def test_further_views_are_the_next_views_of_the_chosen_images_alone(
    form: str, num_workers: int, tmp_path: Path
) -> None:
    arrays = _source(12)
    source = arrays if form == "arrays" else _files(arrays, tmp_path)
    viewer, is_plain = Viewer(EVERYTHING, 4, num_workers=num_workers), torch.arange(12) < 8
    batches, turns = (
        [torch.tensor([9, 1, 8, 9]), torch.tensor([2, 3])],
        [torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0])],
    )
    chosen = [torch.tensor([True, False, False, True]), torch.tensor([False, False])]  # by place, not by image
    options: dict[str, Any] = {"moment": (1, 2), "turns": turns}
    asked: dict[str, Any] = {"num_views": 2, "num_further": 2, "further": chosen, "plain": is_plain}
    found = list(viewer.batches(source, batches, **asked, **options))
    every = list(viewer.batches(source, batches, num_views=4, **options))
    for mine, whole, rows in zip(found, every, chosen, strict=True):
        assert (len(mine.views), len(mine.further), len(mine.plain)) == (2, 2, int(is_plain[mine.positions].sum()))
        assert mine.rows_with_further.tolist() == rows.nonzero().flatten().tolist()
        expected = [*whole.views[:2], *(view[rows] for view in whole.views[2:])]
        for one, other in zip((*mine.views, *mine.further), expected, strict=True):
            assert torch.equal(one, other)


def test_further_views_cost_nothing_for_the_other_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    true_cut = Cutting.cut

    def counted(self: Cutting, source: ImageSource, position: int) -> list[Tensor]:
        crops = true_cut(self, source, position)
        cut.append(len(crops))
        return crops

    monkeypatch.setattr(Cutting, "cut", counted)
    source, chosen = _files(_source(6), tmp_path), torch.arange(6) == 5
    list(Viewer(EVERYTHING, 4).batches(source, [torch.arange(6)], num_views=1, num_further=3, further=[chosen]))
    assert cut == [1, 1, 1, 1, 1, 4]
