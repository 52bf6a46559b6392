"""Old against new data: the mixing number on circles made by hand, the plane, and files that are none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from canary import Canary

from ccl.report.arms import make_arms
from ccl.report.embedding_maps import Cloud, embedding_maps, mixing, plane, read_cloud
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]
Keep = Callable[..., None]

ROWS = [[30, 32], [80, 40], [70, 84]]
NAMES = ("old", "new")


def circle(degrees: list[float], is_new: list[bool]) -> Cloud:
    angles = np.radians(degrees)
    return Cloud(np.stack([np.cos(angles), np.sin(angles)], axis=1), np.array(is_new))


def test_apart_is_zero() -> None:
    old, new = [float(degree) for degree in range(20)], [180.0 + degree for degree in range(20)]
    assert mixing(circle(old + new, [False] * 20 + [True] * 20)) == 0


def test_mixed_at_random_is_one() -> None:
    draws = np.random.default_rng(3)
    rows = draws.normal(size=(900, 8))
    cloud = Cloud(rows / np.linalg.norm(rows, axis=1, keepdims=True), draws.random(900) < 0.3)
    assert mixing(cloud) == pytest.approx(1, abs=0.05)


def test_with_few_images_all_others_are_neighbours_so_it_is_one() -> None:
    assert mixing(circle([0, 5, 90, 95, 200], [False, False, True, True, False])) == pytest.approx(1)


def test_mixing_by_hand() -> None:
    """Every second image of 40 on a circle is new: of an old one's ten nearest, places ±1, ±3 and ±5 are new."""
    evenly = circle([9.0 * place for place in range(40)], [place % 2 == 1 for place in range(40)])
    assert mixing(evenly) == pytest.approx((6 / 10) / (20 / 39))
    # Twelve old images close together, three new ones among them (no two equally far), nine on the other side.
    old = [float(degree) for degree in range(12)]
    among, far = [-1.3, 5.6, 12.2], [180.0 + degree for degree in range(9)]
    cloud = circle(old + among + far, [False] * 12 + [True] * 12)
    places = np.array(old + among)
    shares = []
    for place in old:
        distance = np.abs(places - place)
        nearest = [index for index in np.argsort(distance, kind="stable") if distance[index] > 0][:10]
        shares.append(sum(index >= 12 for index in nearest) / 10)
    assert mixing(cloud) == pytest.approx(np.mean(shares) / (12 / 23))


def test_the_plane_is_the_two_main_directions_with_a_fixed_sign() -> None:
    draws = np.random.default_rng(0)
    along = draws.normal(size=(500, 3)) * [0.5, 3.0, 1.0]
    places, share = plane(along)
    centred = along - along.mean(axis=0)
    assert np.allclose(places, centred[:, [1, 2]], atol=0.5)
    assert np.corrcoef(places[:, 0], centred[:, 1])[0, 1] > 0.99  # not mirrored
    assert np.corrcoef(places[:, 1], centred[:, 2])[0, 1] > 0.99
    variance = np.linalg.svd(centred, compute_uv=False) ** 2
    assert share == pytest.approx(variance[:2].sum() / variance.sum())
    assert share == pytest.approx(10 / 10.25, abs=0.01)
    order = draws.permutation(500)
    assert np.allclose(plane(along[order])[0], places[order])


def test_embeddings_are_read_with_unit_norm_and_the_newest_step_is_new(keep_embeddings: Keep, tmp_path: Path) -> None:
    keep_embeddings(tmp_path, [0, 10, 20, 30], [1, 2, 3, 3])
    cloud = read_cloud(tmp_path)
    assert cloud.is_new.tolist() == [False, False, True, True]
    assert np.linalg.norm(cloud.rows, axis=1) == pytest.approx(1, abs=1e-12)
    keep_embeddings(tmp_path, np.linspace(0, 90, 5000).tolist(), [1] * 2500 + [2] * 2500)
    many = read_cloud(tmp_path)
    assert (len(many.rows), many.is_new.sum()) == (1000, 500)


@pytest.mark.parametrize(
    "arrays",
    [
        {"embeddings": np.eye(4)},
        {"embeddings": np.eye(4), "step": np.array([1, 2, 2])},
        {"embeddings": np.ones(4), "step": np.array([1, 2, 2, 2])},
        {"embeddings": np.ones((4, 1)), "step": np.array([1, 2, 2, 2])},
        {"embeddings": np.eye(4), "step": np.array([2, 2, 2, 2])},
        {"embeddings": np.eye(4) * np.nan, "step": np.array([1, 2, 2, 2])},
        {"embeddings": np.eye(4), "step": np.array(["1", "2", "2", "2"])},
        {"embeddings": np.array(["a", "b"]), "step": np.array([1, 2])},
        {"embeddings": np.zeros((0, 4)), "step": np.zeros(0, dtype=int)},
        {"embeddings": np.array([{}, {}], dtype=object), "step": np.array([1, 2])},
    ],
)
def test_arrays_that_can_not_be_drawn_are_none(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    np.savez(tmp_path / "embeddings.npz", **arrays)
    assert read_cloud(tmp_path) is None


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    bad = np.array([Canary(tmp_path / "run")], dtype=object)
    np.savez(tmp_path / "embeddings.npz", embeddings=bad, step=np.array([1]))
    assert read_cloud(tmp_path) is None
    assert not (tmp_path / "run").exists()


def test_broken_files_are_none(keep_embeddings: Keep, tmp_path: Path) -> None:
    assert read_cloud(tmp_path) is None
    keep_embeddings(tmp_path, [0, 10, 20, 30], [1, 1, 2, 2])
    path = tmp_path / "embeddings.npz"
    whole = path.read_bytes()
    for broken in (b"", b"no zip", whole[: len(whole) // 2], whole[:60] + b"\0" * 40 + whole[100:]):
        path.write_bytes(broken)
        assert read_cloud(tmp_path) is None
    for place in range(0, len(whole), 7):  # no flipped byte breaks the page
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        read_cloud(tmp_path)
    path.write_bytes(whole)
    assert read_cloud(tmp_path) is not None


def test_a_map_of_each_arm_is_of_the_seed_that_most_arms_have(
    record_of: Make, keep_embeddings: Keep, tmp_path: Path
) -> None:
    runs = []
    for strategy in ("ccl", "finetuning"):
        for seed in (0, 1):
            folder = tmp_path / f"{strategy}-{seed}"
            runs.append(record_of(strategy, ROWS, f"seed={seed}", names=NAMES, folder=str(folder)))
            # Seed 1 lies apart, seed 0 has so few images that all others are neighbours.
            apart = [float(place) for place in range(12)] + [180.0 + place for place in range(12)]
            keep_embeddings(folder, apart if seed else [0, 90, 180], [1] * 12 + [2] * 12 if seed else [1, 1, 2])
    runs.append(record_of("simple_rehearsal", ROWS, names=NAMES, folder=str(tmp_path / "none")))
    panels, seed = embedding_maps(make_arms(runs))
    assert [panel.name for panel in panels] == ["CCL", "Finetuning"]
    assert seed == 0
    assert panels[0].caption[:2] == ("mixing 1.00", "mean of 2 seeds 0.50 ± 0.71")

    (tmp_path / "ccl-0/embeddings.npz").unlink()
    panels, seed = embedding_maps(make_arms(runs))
    assert seed == 1  # the seed of most arms
    assert [panel.caption[0] for panel in panels] == ["mixing 0.00"] * 2


def test_without_embeddings_there_is_no_map(record_of: Make) -> None:
    assert embedding_maps(make_arms([record_of("ccl", ROWS, names=NAMES)])) == ([], 0)
