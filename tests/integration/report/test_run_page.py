"""The page: everything in one file, nothing from elsewhere, every name escaped, and no piece that must be there."""

import base64
import hashlib
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ccl.report.page_parts import Thumbnail
from ccl.report.run_page import HEADINGS, gallery, write_page
from ccl.runs.run_folder import RunRecord

Make = Callable[..., RunRecord]
Keep = Callable[..., None]

FORGETS = [[30, 32, 34], [80, 40, 45], [70, 84, 50], [60, 72, 90]]
AT_ONCE = [[30, 32, 34], None, None, [90, 92, 94]]
HOSTILE = ("<script>alert(1)</script>", "\"><img src=x onerror='alert(2)'>", "{{ 7 * 6 }}")


class Page(HTMLParser):
    """All tags with their attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return [name for name, _ in self.tags].count(tag)

    @property
    def sections(self) -> list[str | None]:
        return [attributes["id"] for tag, attributes in self.tags if tag == "section"]


def written(tmp_path: Path, *records: RunRecord, title: str = "Report") -> tuple[Page, str]:
    path = tmp_path / "out" / "report.html"
    write_page(records, path, title)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    assert page.open == []  # every tag is closed in its order
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    return page, html


@pytest.fixture(scope="module")
def comparison(compare: Callable[[Path], list[RunRecord]], tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    """Runs that are not to be changed."""
    return compare(tmp_path_factory.mktemp("comparison"))


@pytest.fixture(scope="module")
def compared(comparison: list[RunRecord], tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, str]:
    """Their page."""
    return written(tmp_path_factory.mktemp("compared"), *comparison)


def row_of(html: str, name: str) -> list[str]:
    """The cells of the first row of this name."""
    row = re.search(rf'<th scope="row" role="rowheader">{name}</th>(.*?)</tr>', html)
    return re.findall('<td role="cell" data-label="[^"]*">(.*?)</td>', row[1])


def test_a_comparison_has_all_sections_in_their_order_and_links_to_them(compared: tuple[Page, str]) -> None:
    page, html = compared
    shown = [name for name in HEADINGS if name != "accuracy"]  # the stream is the first picture
    assert page.sections == shown
    nav = html[html.index("<nav") : html.index("</nav>")]
    assert re.findall('href="([^"]*)"', nav) == [f"#{name}" for name in shown[1:]]
    steps = "over a stream of 300 unlabelled images in 3 steps: digits → capitals → greek."
    assert f"8 runs of 4 arms {steps}" in page.text
    assert row_of(html, "CCL")[:3] == ["0, 1", "38.0 ± 1.4", "+0.0 (0.0 to 0.0)"]
    # Matrices, losses and maps of each arm, the stream, one forest.
    assert page.count("svg") == 3 * 4 + 1 + 1
    for words in ("mixing 1.00", "mean of 2 seeds 1.00 ± 0.00", "CCL, seed 0", "seed 0 / 1"):
        assert words in page.text
    assert html.count("CCL, seed 0") > html.count("CCL, seed 1") == 1  # losses and images are of the first seed only


def test_single_runs_need_no_seeds(record_of: Make, tmp_path: Path) -> None:
    page, html = written(tmp_path, record_of("finetuning", FORGETS), record_of("upper_bound", AT_ONCE))
    left_out = {"accuracy", "differences", "memory", "map"}
    assert page.sections == [name for name in HEADINGS if name not in left_out]
    assert "2 runs over a stream of 300 unlabelled images in 3 steps" in page.text
    assert row_of(html, "Finetuning") == ["37.0", "–", "–", "16.0", "12.0", "84.7", "1.00×", "7.5"]
    assert "over seeds" not in page.text
    assert ", seed 0" not in page.text


def test_streams_of_different_lengths_stand_in_one_page(record_of: Make, tmp_path: Path) -> None:
    two = record_of("ccl", [[30, 32], [70, 40], [60, 80]], "steps=2", names=("x", "y"))
    page, html = written(tmp_path, record_of("ccl", FORGETS, "steps=3"), two)
    assert "in 2 or 3 steps." in page.text
    assert re.findall("<h3>(T = .)</h3>", html) == ["T = 2", "T = 3"]
    assert page.count("svg") == 2 + 2 + 2  # matrices, streams of each length, losses


def test_the_same_runs_make_the_same_page(
    comparison: list[RunRecord], compared: tuple[Page, str], tmp_path: Path
) -> None:
    assert written(tmp_path, *comparison)[1] == compared[1]


def test_the_page_loads_nothing_from_elsewhere(compared: tuple[Page, str]) -> None:
    page, html = compared
    assert set(re.findall(r"https?://[^\s\"'<)]*", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not {"link", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for key in {"src", "href", "xlink:href"} & attributes.keys():
            assert str(attributes[key]).startswith(("data:image/", "#"))
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert "default-src 'none'" in html
    # One script, which the policy names by its hash: a browser runs no other.
    (script,) = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in html
    assert not re.search(r"fetch|XMLHttpRequest|import|WebSocket|sendBeacon|eval|innerHTML", script)


def test_hostile_names_are_shown_and_do_nothing(record_of: Make, keep_embeddings: Keep, tmp_path: Path) -> None:
    folder = f"{tmp_path}/{HOSTILE[0]}"
    keep_embeddings(Path(folder), [0, 90, 180], [1, 1, 2])
    told = {"dataset": HOSTILE[1], "fingerprint": HOSTILE[0], "device": "'\"<b>"}
    record = record_of(HOSTILE[0], FORGETS, names=HOSTILE, folder=folder, state=HOSTILE[1], **told)
    elsewhere = record_of(HOSTILE[0], FORGETS, "seed=1", names=HOSTILE, folder=f"runs/{HOSTILE[1]}\udcff", **told)
    page, html = written(tmp_path, record, elsewhere, record, title=HOSTILE[0])
    assert not {"img", "b"} & {tag for tag, _ in page.tags}
    assert page.count("script") == 1  # ours
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert html.count("<script") == 1
    assert page.text.count("<script>alert(1)</script>") > 5
    assert "{{ 7 * 6 }}" in page.text  # names are no templates


def test_runs_without_accuracy_or_epochs_still_make_a_page(record_of: Make, tmp_path: Path) -> None:
    record = record_of("ccl", None, state="running")
    record.rows.clear()
    page, _ = written(tmp_path, record)
    assert page.sections == ["arms", "losses", "protocol"]
    assert "No epoch has ended yet" in page.text
    assert "0 of 1 complete" in page.text
    assert "Not complete: CCL, seed 0 (running)." in page.text


def test_a_seed_or_an_arm_may_lack_anything(
    compare: Callable[[Path], list[RunRecord]], record_of: Make, tmp_path: Path
) -> None:
    runs = compare(tmp_path)
    (runs[0].folder / "embeddings.npz").unlink()  # Finetuning, seed 0
    (runs[4].folder / "memory/index.csv").unlink()  # CCL, seed 0
    unprobed = record_of("ccl", None, "seed=2", state="stopped")
    unknown = record_of("simple_rehearsal", None)
    unknown.rows.clear()
    page, _ = written(tmp_path, *runs, unprobed, unknown)
    assert page.sections == [name for name in HEADINGS if name != "accuracy"]
    assert "CCL, seed 1" in page.text  # the first seed that kept images
    assert "Without embeddings of this seed, and not shown: 1 of 5." in page.text


@pytest.mark.slow
def test_twenty_arms_stay_below_five_megabytes(record_of: Make, keep_images: Keep, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    keep_images(folder, [number / 1000 for number in range(100)])
    draws = np.random.default_rng(0)
    for number in range(100):
        picture = Image.fromarray(draws.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((96, 96))
        picture.save(folder / f"memory/{number:06d}.png")
    runs = [record_of("ccl", FORGETS, f"extra_sample_queue.size={size}", folder=str(folder)) for size in range(1, 21)]
    page, html = written(tmp_path, *runs)
    assert "accuracy" in page.sections
    assert page.count("img") == 20 * 25  # every fourth of 100: of all arms at most 600
    assert len(html) < 5_000_000


def images_of(folder: Path, most: int = 60) -> list[Thumbnail]:
    return [image for image, _ in gallery(folder, most)]


def opened(image: Thumbnail, mime: str = "image/png") -> Image.Image:
    head, content = image.source.split(",", 1)
    assert head == f"data:{mime};base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def reds(images: list[Thumbnail]) -> list[int]:
    return [opened(image).getpixel((0, 0))[0] for image in images]  # type: ignore[index]


def test_kept_images_stand_by_their_score(keep_images: Keep, tmp_path: Path) -> None:
    keep_images(tmp_path / "scored", [(37 * number % 100) / 1000 for number in range(100)])
    order = sorted(range(100), key=lambda number: 37 * number % 100)
    images = images_of(tmp_path / "scored")
    assert reds(images) == order[::2]
    assert all(image.is_small for image in images)
    assert gallery(tmp_path / "scored")[1][1] == ("step 2", "cluster 5", "score 0.002")
    assert reds(images_of(tmp_path / "scored", most=10)) == order[::10]
    keep_images(tmp_path / "random", [float("nan")] * 130)
    assert reds(images_of(tmp_path / "random")) == list(range(0, 130, 3))
    assert {facts for _, facts in gallery(tmp_path / "random")} == {("step 2", "cluster 5")}


def test_a_heavy_image_takes_little_room(keep_images: Keep, tmp_path: Path) -> None:
    keep_images(tmp_path, [0.1, 0.2])
    draws = np.random.default_rng(0)
    for number, side in ((0, 32), (1, 500)):
        noise = draws.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"memory/{number:06d}.png")
    small, large = images_of(tmp_path)
    assert opened(small).size == (32, 32)  # as it lies in the folder, without loss
    assert opened(large, "image/jpeg").size == (96, 96)
    assert (small.is_small, large.is_small) == (True, False)
    assert len(large.source) < 12_000 < (tmp_path / "memory/000001.png").stat().st_size


def test_only_images_of_the_memory_are_read(keep_images: Keep, tmp_path: Path) -> None:
    run = tmp_path / "run"
    keep_images(run, [0.1, 0.2, 0.3])
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    (run / "memory/000001.png").write_bytes(b"no image")
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, format="PNG")
    (run / "memory/000002.png").write_bytes(file.getvalue()[:2000])  # a head, and half of its pixels
    with (run / "memory/index.csv").open("a") as file:
        file.write(f"../../secret.png,7,1,1,0.5\n{tmp_path}/secret.png,7,1,1,0.5\ngone.png,8,1,1,0.5\nshort\n")
    assert [facts for _, facts in gallery(run)] == [("step 2", "cluster 5", "score 0.1")]


def test_a_run_without_memory_has_no_gallery(keep_images: Keep, tmp_path: Path) -> None:
    assert gallery(tmp_path) == []
    keep_images(tmp_path, [0.1])
    assert len(images_of(tmp_path)) == 1
    (tmp_path / "memory/index.csv").write_bytes(b"\xff\xfe\x00")
    assert gallery(tmp_path) == []
