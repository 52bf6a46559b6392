"""The page: everything in one file, nothing from elsewhere, every name escaped, the kept images in order."""

import base64
import csv
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from ccl.report import RunRecord
from ccl.report.page import write_page

Make = Callable[..., RunRecord]

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


def written(tmp_path: Path, *records: RunRecord, title: str = "Report") -> tuple[Page, str]:
    write_page(records, tmp_path / "out" / "report.html", title)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert page.open == []  # every tag is closed in its order
    return page, html


def images_of(page: Page) -> list[dict[str, str | None]]:
    return [attributes for tag, attributes in page.tags if tag == "img"]


def keep(folder: Path, scores: list[float], size: int = 16) -> None:
    """A memory whose image number i has the red value i."""
    (folder / "memory").mkdir(parents=True)
    with (folder / "memory" / "index.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "id", "step", "cluster", "score"])
        for number, score in enumerate(scores):
            Image.new("RGB", (size, size), (number, 0, 0)).save(folder / "memory" / f"{number:06d}.png")
            table.writerow([f"{number:06d}.png", number, 2, 5, score])


def shown_image(attributes: dict[str, str | None]) -> Image.Image:
    head, content = str(attributes["src"]).split(",", 1)
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_the_page_has_all_sections_and_the_numbers(record_of: Make, tmp_path: Path) -> None:
    page, html = written(tmp_path, record_of("finetuning", FORGETS), record_of("upper_bound", AT_ONCE))
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == ["summary", "matrices", "accuracy", "first-step", "losses", "protocol"]
    assert "2 runs over a stream of 300 unlabelled images in 3 steps: digits → capitals → greek." in page.text
    assert "strategy=finetuning | upper_bound" in page.text
    row = re.search(r'<tr><th scope="row">Finetuning</th>(.*?)</tr>', html)
    assert row is not None
    assert re.findall("<td>(.*?)</td>", row[1]) == ["37.0", "74.0", "80.0", "60.0", "16.0", "12.0", "7.5"]
    assert [tag for tag, _ in page.tags].count("svg") == 5  # three of the stream, one of losses per run
    assert [tag for tag, _ in page.tags].count("details") == 4


def test_the_page_loads_nothing_from_elsewhere(record_of: Make, tmp_path: Path) -> None:
    keep(tmp_path / "run", [0.1, 0.2])
    page, html = written(tmp_path, record_of("ccl", FORGETS, folder=str(tmp_path / "run")))
    assert set(re.findall(r"https?://[^\s\"'<)]*", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not {"script", "link", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for key in {"src", "href", "xlink:href"} & attributes.keys():
            assert str(attributes[key]).startswith(("data:image/", "#"))
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert "default-src 'none'" in html


def test_hostile_names_are_shown_and_do_nothing(record_of: Make, tmp_path: Path) -> None:
    folder = f"runs/{HOSTILE[0]}\udcff"
    told = {"dataset": HOSTILE[1], "fingerprint": HOSTILE[0], "device": "'\"<b>"}
    record = record_of(HOSTILE[0], FORGETS, names=HOSTILE, folder=folder, state=HOSTILE[1], **told)
    page, html = written(tmp_path, record, record, title=HOSTILE[0])
    assert not {"script", "img", "b"} & {tag for tag, _ in page.tags}
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert "<script" not in html
    assert page.text.count("<script>alert(1)</script>") > 5
    assert "{{ 7 * 6 }}" in page.text  # names are no templates


def test_runs_without_accuracy_or_epochs_still_make_a_page(record_of: Make, tmp_path: Path) -> None:
    record = record_of("ccl", None, state="running")
    record.rows.clear()
    page, _ = written(tmp_path, record)
    assert "No accuracy was measured" in page.text
    assert "No epoch has ended yet" in page.text
    assert "0 of 1 complete" in page.text
    assert "Not complete: CCL (running)." in page.text


def test_the_gallery_shows_lowest_and_highest_variance_in_order(record_of: Make, tmp_path: Path) -> None:
    keep(tmp_path / "run", [(37 * number % 100) / 1000 for number in range(100)])
    page, _ = written(tmp_path, record_of("ccl", FORGETS, folder=str(tmp_path / "run")))
    images = images_of(page)
    assert len(images) == 60
    order = sorted(range(100), key=lambda number: 37 * number % 100)
    assert [shown_image(image).getpixel((0, 0))[0] for image in images] == order[:30] + order[-30:]  # type: ignore[index]
    assert images[1]["alt"] == "step 2, cluster 5, variance 0.001"
    assert images[-1]["alt"] == "step 2, cluster 5, variance 0.099"
    assert all(image["class"] == "small" for image in images)
    assert "Lowest variance (100 kept)" in page.text


def test_few_images_are_shown_once_and_random_ones_without_variance(record_of: Make, tmp_path: Path) -> None:
    keep(tmp_path / "few", [0.3, 0.1, 0.2])
    keep(tmp_path / "random", [float("nan")] * 130)
    few = images_of(written(tmp_path, record_of("ccl", FORGETS, folder=str(tmp_path / "few")))[0])
    assert [shown_image(image).getpixel((0, 0))[0] for image in few] == [1, 2, 0]  # type: ignore[index]
    page, _ = written(tmp_path, record_of("ccl", FORGETS, folder=str(tmp_path / "random")))
    assert 40 <= len(images_of(page)) <= 60
    assert {image["alt"] for image in images_of(page)} == {"step 2, cluster 5"}
    assert "Drawn at random (130 kept)" in page.text


def test_large_images_are_made_small(record_of: Make, tmp_path: Path) -> None:
    keep(tmp_path / "run", [0.1], size=500)
    (image,) = images_of(written(tmp_path, record_of("ccl", FORGETS, folder=str(tmp_path / "run")))[0])
    assert shown_image(image).size == (96, 96)
    assert "class" not in image


def test_the_gallery_reads_only_images_of_the_memory(record_of: Make, tmp_path: Path) -> None:
    keep(tmp_path / "run", [0.1, 0.2])
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    (tmp_path / "run/memory/000001.png").write_bytes(b"no image")
    with (tmp_path / "run/memory/index.csv").open("a") as file:
        file.write(f"../../secret.png,7,1,1,0.5\n{tmp_path}/secret.png,7,1,1,0.5\ngone.png,8,1,1,0.5\nshort\n")
    images = images_of(written(tmp_path, record_of("ccl", FORGETS, folder=str(tmp_path / "run")))[0])
    assert [image["alt"] for image in images] == ["step 2, cluster 5, variance 0.1"]


def test_a_page_that_fails_leaves_the_old_one(record_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_page([record_of("ccl", FORGETS)], path, "Report")
    assert path.read_text() == "old"
