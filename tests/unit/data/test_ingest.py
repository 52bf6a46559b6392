"""Images from wherever they are: which ones, in what order, by what names, and what is said of the rest."""

import hashlib
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from openings import openings
from PIL import Image

from ccl.data import (
    ArraySource,
    EncodedSource,
    FileSource,
    Gathered,
    SquaredSource,
    collected,
    decoding,
    find_held,
    find_images,
    finding_images,
    gather,
    load_dataset,
    median_side,
    squared,
)
from ccl.data.decoding import Reduction
from ccl.data.ingest import ingest
from ccl.errors import UserError


def _png(shade: int = 0, size: tuple[int, int] = (3, 2), mode: str = "RGB", format_name: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade % 256, shade // 256, 0)).convert(mode).save(buffer, format_name)
    return buffer.getvalue()


def _fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def _shades(gathered: Gathered) -> list[int]:
    """The red of each image, by which a test knows which one it is."""
    return [gathered.source.picture(position).getpixel((0, 0))[0] for position in range(len(gathered.source))]  # type: ignore[index]


def gather_arrays(images: Iterable[object], side: int | None = None) -> Gathered:
    return collected(find_held(images), side, lambda digest: False)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def _planted() -> tuple[dict[str, bytes], dict[str, str]]:
    """Files of every kind among 120 plain ones, and those that are to be left out, with a word of the reason."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    buffer = io.BytesIO()
    noise.save(buffer, "JPEG")
    bomb = bytearray(_png())
    bomb[16:24] = (12_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    odd = {
        "odd/1x1.png": _png(size=(1, 1)),
        "odd/1x5000.png": _png(size=(1, 5000)),
        "odd/cmyk.jpg": _png(mode="CMYK", format_name="JPEG"),
        "odd/grey.PNG": _png(mode="L"),
        "odd/palette.gif": _png(mode="P", format_name="GIF"),
        "odd/alpha.png": _png(mode="RGBA"),
        "odd/deep.png": _png(mode="I;16"),
    }
    bad = {
        "bad/zero.jpg": (b"", "the file is empty"),
        "bad/cut.jpg": (buffer.getvalue()[:1000], "truncated"),
        "bad/page.jpg": (b"<html>404</html>", "not an image of the formats"),
        "bad/bomb.png": (bytes(bomb), "12000×12000 pixels exceed the limit"),
    }
    plain = {f"plain/{number:03}.png": _png(number) for number in range(120)}
    return {**odd, **plain, **{name: content for name, (content, _) in bad.items()}}, {
        name: reason for name, (_, reason) in bad.items()
    }


def test_what_is_planted_is_found_in_a_folder_as_in_archives(here: Path, scratch: Path) -> None:
    files, bad = _planted()
    _fill(here / "images", files)
    with zipfile.ZipFile("images.zip", "w") as archive:
        for name in reversed(files):
            archive.writestr(name, files[name])
    with tarfile.open("images.tgz", "w:gz") as tar:
        tar.add("images", ".")
    told = {}
    for name in ("images", "images.zip", "images.tgz"):
        gathered = gather([name], scratch)
        prefix = "images/" if name == "images" else f"{name}::"
        assert list(gathered.names) == [f"{prefix}{file}" for file in sorted(files) if file not in bad]
        assert gathered.source.ids.tolist() == list(range(len(files) - len(bad)))
        assert [image.path for image in gathered.skipped] == [f"{prefix}{file}" for file in sorted(bad)]
        for image in gathered.skipped:
            assert bad[image.path.removeprefix(prefix)] in image.reason
        assert {len(digest) for digest in gathered.digests} == {16}
        assert gathered.found.notes == ()
        pixels = [gathered.source.picture(at).tobytes() for at in range(len(gathered.source))]
        told[name] = (gathered.digests, pixels, [image.reason for image in gathered.skipped])
    assert told["images"] == told["images.zip"] == told["images.tgz"]


@pytest.mark.parametrize("name", ["images", "images.zip"])
def test_a_twentieth_may_be_bad_and_more_stops_with_advice(here: Path, scratch: Path, name: str) -> None:
    files = {f"{number:02}.png": _png(number) for number in range(19)}
    for bad, is_fine in (("x.png", True), ("y.png", False)):
        files[bad] = b""
        _fill(here / "images", files)
        with zipfile.ZipFile("images.zip", "w") as archive:
            for file, content in files.items():
                archive.writestr(file, content)
        if is_fine:
            assert len(gather([name], scratch).source) == 19
            continue
        with pytest.raises(
            UserError, match=rf"^2 of 21 images .*the first is {name}(/|::)x.png: .*; delete or replace"
        ):
            gather([name], scratch)


def test_any_layout_in_a_fixed_order(here: Path, scratch: Path) -> None:
    names = ["b.png", "a/z/y/x/w.png", "a/b.png", "a.png", "train/cat/1.png", "B.png", "a b/ü\n.png", "val/1.png"]
    files = {name: _png(number) for number, name in enumerate(names)}
    hidden = dict.fromkeys([".x.png", "a/.x.png", ".git/x.png", "__MACOSX/x.png", "a/__MACOSX/x.png"], b"?")
    _fill(here / "images", files | hidden | {"notes.txt": b"?", "a/x.TXT": b"?", "a/readme": b"?", "a/x.zip": b"?"})
    expected = ["B.png", "a/b.png", "a/z/y/x/w.png", "a b/ü\n.png", "a.png", "b.png", "train/cat/1.png", "val/1.png"]
    for given in ("images", "images/", str(here / "images")):
        gathered = gather([given], scratch)
        assert list(gathered.names) == [os.path.join(given, name) for name in expected]
        assert _shades(gathered) == [names.index(name) for name in expected]
        assert gathered.found.notes == (
            "4 files are not images and are skipped: '.txt' 2, '' 1, archives (give them by their names) 1",
        )
    assert gather(Path("images"), scratch).digests == gathered.digests  # type: ignore[arg-type]  # one, not its letters


def test_inputs_come_in_the_order_given_and_may_overlap(here: Path, scratch: Path) -> None:
    _fill(here, {"b/1.png": _png(1), "a/2.png": _png(2), "3.png": _png(3)})
    gathered = gather(["b", Path("3.png"), "a", "b/1.png"], scratch)
    assert gathered.names == ("b/1.png", "3.png", "a/2.png", "b/1.png")
    assert _shades(gathered) == [1, 3, 2, 1]
    assert len(set(gathered.digests)) == 3


def test_names_of_any_bytes(here: Path, scratch: Path) -> None:
    odd = os.fsdecode(b"\xff\xfe.png")
    _fill(
        here / "images",
        {odd: _png(1), "a\nb.png": _png(2), **{f"{number:02}.png": _png(number) for number in range(38)}},
    )
    (here / "images" / os.fsdecode(b"bad\xff.png")).write_bytes(b"")
    gathered = gather(["images"], scratch)
    assert f"images/{odd}" in gathered.names
    assert "images/a\nb.png" in gathered.names
    assert [image.path for image in gathered.skipped] == [os.fsdecode(b"images/bad\xff.png")]
    (here / "list.txt").write_bytes(b"images/\xff\xfe.png\n")
    assert gather(["list.txt"], scratch).names == (f"images/{odd}",)
    with pytest.raises(UserError) as caught:
        gather([os.fsdecode(b"\xff")], scratch)
    str(caught.value).encode()  # it can be printed


def test_links_are_followed_and_loops_end(here: Path, scratch: Path) -> None:
    _fill(here, {"images/a/1.png": _png(1), "elsewhere/2.png": _png(2), "elsewhere/3.png": _png(3)})
    for link, goal in {
        "images/a/up": "..",
        "images/a/up2": "../..",
        "images/self": "self",
        "images/self.png": "self.png",
        "images/nowhere.png": "gone.png",
        "images/z": "../elsewhere",
        "images/zz": "../elsewhere",
        "images/4.png": "../elsewhere/3.png",
    }.items():
        os.symlink(goal, here / link)
    gathered = gather(["images"], scratch)
    assert gathered.names == (
        "images/4.png",
        "images/a/1.png",
        "images/a/up2/elsewhere/2.png",
        "images/a/up2/elsewhere/3.png",
    )
    assert "skipped: links to nowhere, devices or sparse files 2" in gathered.found.notes[0]
    assert [Path(name).name for name in gather(["images/**/*.png"], scratch).names] == [
        "4.png",
        "1.png",
        "2.png",
        "3.png",
    ]


def test_a_pipe_is_not_waited_for(here: Path, scratch: Path) -> None:
    _fill(here, {"images/1.png": _png(1)})
    os.mkfifo("images/pipe.png")
    assert gather(["images", "images/*"], scratch).names == ("images/1.png", "images/1.png")
    with pytest.raises(UserError, match=r"'images/pipe.png' is neither a file nor a folder"):
        gather(["images/pipe.png"], scratch)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("d/*.png", ["d/1.png", "d/[x].png"]),
        ("d/?.png", ["d/1.png"]),
        ("d/[0-9].*", ["d/1.png"]),
        ("d/[x].png", ["d/[x].png"]),  # as it is, where there is such a file
        ("d/[[]x].png", ["d/[x].png"]),
        ("*/*/*.jpg", ["d/e/3.jpg", "d/f/4.jpg"]),
        ("**/*.jpg", ["d/e/3.jpg", "d/f/4.jpg", "g/deep/er/5.jpg"]),
        ("d/**", ["d/1.png", "d/[x].png", "d/e/3.jpg", "d/f/4.jpg"]),
        ("**", ["./d/1.png", "./d/[x].png", "./d/e/3.jpg", "./d/f/4.jpg", "./g/deep/er/5.jpg"]),
        ("d/**/*", ["d/1.png", "d/[x].png", "d/e/3.jpg", "d/f/4.jpg"]),
        ("d/**/[ef]/*", ["d/e/3.jpg", "d/f/4.jpg"]),
        ("./[dg]", ["./d/1.png", "./d/[x].png", "./d/e/3.jpg", "./d/f/4.jpg", "./g/deep/er/5.jpg"]),
        ("*.zip", ["x.zip::in.png"]),
        ("../here/g/**/5.*", ["../here/g/deep/er/5.jpg"]),
    ],
)
def test_globs(here: Path, scratch: Path, pattern: str, expected: list[str]) -> None:
    names = ["d/1.png", "d/[x].png", "d/e/3.jpg", "d/f/4.jpg", "g/deep/er/5.jpg", "d/.h.png", ".h/1.jpg"]
    _fill(here, {**{name: _png(1) for name in names}, "d/readme.txt": b"no list", "empty/readme.txt": b"?"})
    with zipfile.ZipFile("x.zip", "w") as archive:
        archive.writestr("in.png", _png(1))
    assert list(gather([pattern], scratch).names) == expected
    absolute = gather([str(here / pattern)], scratch)
    assert [os.path.relpath(name, here) for name in absolute.names] == [
        os.path.relpath(name, here) for name in expected
    ]


def test_a_list_of_paths(here: Path, scratch: Path) -> None:
    _fill(
        here,
        {"lists/a b.png": _png(1), "2.png": _png(2), "d/3.png": _png(3), "lists/2.jpg": _png(4), "x/e.png": _png(5)},
    )
    lines = ["\ufeff# some images", "a b.png  ", "", "2.png", str(here / "d"), "  # more", "*.jpg", "x/*.png", "2.png"]
    (here / "lists" / "list").write_text("\r\n".join(lines), encoding="utf-8")
    gathered = gather(["lists/list"], scratch)
    assert list(gathered.names) == ["lists/a b.png", "2.png", str(here / "d/3.png"), "lists/2.jpg", "x/e.png", "2.png"]
    assert _shades(gathered) == [1, 2, 3, 4, 5, 2]


def test_where_one_is_later_does_not_matter(here: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill(here, {"a/1.png": _png(7)})
    with zipfile.ZipFile("x.zip", "w") as archive:
        archive.writestr("in.png", _png(8))
    gathered = gather(["a", "x.zip"], Path("../scratch"))
    monkeypatch.chdir("/")
    assert _shades(gathered) == [7, 8]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "no images are given"),
        (["gone"], "there is no file or folder 'gone'; it was looked for in '/.*/here'"),
        (["1.png", "gone.png"], "there is no file or folder 'gone.png'"),
        ([""], "there is no file or folder ''"),
        (["*.webp"], "nothing matches '\\*.webp'"),
        (["gone/**/*.png"], "nothing matches"),
        (["empty"], "'empty' holds no images, and 0 other files; images end in .bmp, .*; archives in .zip, "),
        (["texts"], "'texts' holds no images, and 2 other files"),
        (["texts/*"], "'texts/\\*' holds no images, and 2 other files"),
        (["1.png", "empty"], "'empty' holds no images"),
        (["texts.zip"], "'texts.zip' holds no images, and 1 other files"),
        (["no.zip"], "'no.zip' is damaged"),
        (["dangling.png"], "'dangling.png' is neither a file nor a folder"),
        (["list.txt"], "list of paths 'list.txt', line 3: there is no file or folder 'gone.png'"),
        (["lists.txt"], "list of paths 'lists.txt', line 1: '.*list.txt' is not an image, archive or list of paths"),
        (["glob.txt"], "list of paths 'glob.txt', line 2: nothing matches"),
        (["blank.txt"], "'blank.txt' holds no images"),
        (["binary.dat"], "'binary.dat' is not an image, archive or list of paths; images end in"),
        (["bad.png"], "1 of 1 images can't be decoded, the first is bad.png: "),
    ],
)
def test_mistakes_are_one_clear_line(here: Path, scratch: Path, given: list[str], told: str) -> None:
    _fill(here, {"1.png": _png(), "bad.png": b"?", "texts/a.txt": b"?", "texts/b/c.md": b"?", "binary.dat": b"1\0"})
    _fill(
        here,
        {"no.zip": b"?", "list.txt": b"# my list\n1.png\ngone.png\n", "lists.txt": b"list.txt", "blank.txt": b"#\n\n"},
    )
    _fill(here, {"glob.txt": b"1.png\n*.webp"})
    (here / "empty").mkdir()
    os.symlink("gone", "dangling.png")
    with zipfile.ZipFile("texts.zip", "w") as archive:
        archive.writestr("a.txt", "?")
    with pytest.raises(UserError, match=told) as caught:
        gather(given, scratch)
    assert "\n" not in str(caught.value)


def test_equal_content_has_equal_digests_wherever_it_lies(here: Path, scratch: Path) -> None:
    _fill(here, {"a/1.png": _png(1), "a/2.png": _png(2), "b/other name.PNG": _png(1)})
    with zipfile.ZipFile("x.zip", "w") as archive:
        archive.writestr("deep/in.png", _png(2))
    one, two, again, packed = gather(["a", "b", "x.zip"], scratch).digests
    assert one == again
    assert two == packed
    assert one != two
    assert gather_arrays([_png(1), Path("a/2.png")]).digests == (one, two)


def test_what_is_known_and_what_repeats_is_left_out(here: Path, scratch: Path) -> None:
    _fill(here, {f"{number}.png": _png(shade) for number, shade in enumerate([5, 6, 5, 7, 6, 8, 7, 7])})
    gathered = gather(["*.png"], scratch)
    known = {gathered.digests[3]}
    unseen = gather(["*.png"], scratch, is_known=known.__contains__).distinct()
    assert unseen.names == ("0.png", "1.png", "5.png")
    assert unseen.digests == tuple(gathered.digests[at] for at in (0, 1, 5))
    assert unseen.source.ids.tolist() == [0, 1, 2]
    assert [unseen.source.picture(at).getpixel((0, 0)) for at in range(3)] == [(5, 0, 0), (6, 0, 0), (8, 0, 0)]
    assert (unseen.num_known, unseen.num_repeated) == (3, 2)
    nothing = gather(["*.png"], scratch, is_known=lambda digest: True).distinct()
    assert (len(nothing.source), nothing.names, nothing.num_known, nothing.num_repeated) == (0, (), 8, 0)
    assert nothing.source.ids.tolist() == []


@pytest.mark.parametrize("kind", [ArraySource, EncodedSource, FileSource])
def test_sources_of_every_kind_keep_their_form(here: Path, kind: type) -> None:
    images: list[object] = [np.full((2, 2), shade, np.uint8) for shade in (1, 1, 2, 3)]
    if kind is not ArraySource:
        images = [_png(shade) for shade in (1, 1, 2, 3)]
    if kind is FileSource:
        _fill(here, {f"{number}.png": _png(shade) for number, shade in enumerate((1, 1, 2, 3))})
        images = sorted(here.iterdir())
    unseen = gather_arrays(images).distinct()
    assert isinstance(unseen.source, kind)
    assert unseen.source.ids.tolist() == [0, 1, 2]
    assert [unseen.source.picture(at).getpixel((0, 0))[0] for at in range(3)] == [1, 2, 3]  # type: ignore[index]


# -- one pass --


@pytest.fixture
def opened() -> Iterator[list[str]]:
    with openings(r"\.(png|jpg)$") as names:
        yield names


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes of pictures as they are decoded."""
    sizes: list[tuple[int, int]] = []
    reduce = decoding._reduce

    def spied(image: Image.Image, reduction: Reduction | None, turn: int) -> int:
        sizes.append(image.size)
        return reduce(image, reduction, turn)

    monkeypatch.setattr(decoding, "_reduce", spied)
    return sizes


@pytest.fixture
def forty(here: Path) -> Path:
    """Forty sound files of many sizes and a bad one."""
    files = {f"{at:02}.png": _png(at, (30 + at, 90 - at)) for at in range(38)}
    files["38.jpg"] = _png(38, (64, 48), format_name="JPEG")
    files["39.jpg"] = _png(39, (17, 300), format_name="JPEG")
    return _fill(here, {**files, "bad.png": b"?"})


SIDES = [*(min(30 + at, 90 - at) for at in range(38)), 48, 17]


def test_each_file_is_opened_once_and_decoded_once(
    forty: Path, scratch: Path, opened: list[str], decoded: list[tuple[int, int]]
) -> None:
    gathered = gather([forty], scratch, side=16)
    assert sorted(opened) == [*(f"{at:02}.png" for at in range(38)), "38.jpg", "39.jpg", "bad.png"]
    assert len(decoded) == 40
    assert gathered.source.image_size == (16, 16)
    gathered.distinct().source.read(torch.arange(40))
    assert len(opened) == 41  # the pixels are in memory
    for resize in (16, None):
        del opened[:], decoded[:]
        load_dataset("folder", forty, resize=resize)
        assert (len(opened), len(decoded)) == (41, 40)


def test_a_typical_size_is_in_the_headers(
    forty: Path, scratch: Path, opened: list[str], decoded: list[tuple[int, int]]
) -> None:
    heard: list[tuple[int, int]] = []
    found = find_images([forty], scratch)
    assert median_side(found, lambda *now: heard.append(now)) == sorted(SIDES)[20]
    assert len(set(opened)) == 41
    assert decoded == []
    assert heard == [(number, 41) for number in range(1, 42)]
    assert median_side(find_images([np.zeros((9, 12), np.uint8)], scratch)) == 9
    assert median_side(find_images([b"?"], scratch)) == 0
    _fill(scratch, {"a.png": _png(size=(20, 30))})
    with tarfile.open(scratch / "a.tar", "w") as tar:
        tar.add(scratch / "a.png", "a.png")
    assert median_side(find_images([scratch / "a.png", f"shards:{scratch / 'a.tar'}"], scratch)) == 20


def test_squares_keep_their_short_files_from_the_pass(forty: Path, scratch: Path, opened: list[str]) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8))
    noise.save("noise.png")
    gathered = collected(find_images(["."], scratch), 16, spool=scratch)
    assert isinstance(gathered.source, SquaredSource)
    assert len(set(opened)) == 42 == len(opened) - 1  # noise.png was written here
    assert gathered.file_sizes.tolist() == [os.path.getsize(name) for name in gathered.names]
    for path in forty.iterdir():
        path.unlink()
    some = gathered.source.with_ids(gathered.source.ids + 7).subset(torch.tensor([40, 3, 39]))
    assert isinstance(some, SquaredSource)
    assert some.ids.tolist() == [47, 10, 46]
    pixels = EncodedSource([some.encoded(at) for at in range(3)]).decoded((16, 16), is_squared=True)
    assert torch.equal(pixels.read(torch.arange(3)), some.images)


def test_without_a_side_pixels_cost_one_more_opening(
    forty: Path, scratch: Path, opened: list[str], decoded: list[tuple[int, int]]
) -> None:
    first = gather(["."], scratch).distinct()
    assert (len(opened), len(decoded)) == (41, 40)
    small = squared(first.source, 16)
    assert (len(opened), len(decoded)) == (81, 80)
    assert squared(small, 16) is small
    at_once = gather(["."], scratch, side=16).source
    assert torch.equal(small.images, at_once.images)


def test_pixels_are_the_centre_squares_and_sizes_those_of_the_files(forty: Path, scratch: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (31, 60, 3), dtype=np.uint8))
    noise.save("noise.png")
    noise.save("noise.jpg")
    given = [*(f"{at:02}.png" for at in range(38)), "38.jpg", "39.jpg", "noise.png", "noise.jpg"]
    gathered = gather(given, scratch, side=8)
    assert gathered.source.images[:38, 0, 4, 4].tolist() == list(range(38))
    for at in (40, 41):  # of every pixel: a JPEG is not decoded smaller here
        with Image.open(given[at]) as whole:
            square = whole.resize((8, 8), Image.Resampling.BILINEAR, box=(14.5, 0, 45.5, 31))
        assert np.array_equal(gathered.source.images[at].permute(1, 2, 0).numpy(), np.asarray(square))


def test_a_file_that_may_not_be_read_is_left_out(forty: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.open

    def locked(path: Path, mode: str) -> io.BufferedReader:
        if path.name == "05.png":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, "rb")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", locked)
        assert str(gather(["."], scratch).skipped[0]) == "05.png: Permission denied"
    assert len(gather(["."], scratch).source) == 40


def test_known_images_are_counted_and_not_decoded(
    forty: Path, scratch: Path, opened: list[str], decoded: list[tuple[int, int]]
) -> None:
    digests = gather(["."], scratch).digests
    known = {digests[at] for at in range(40) if at % 4}
    del opened[:], decoded[:]
    gathered = gather(["."], scratch, side=16, is_known=known.__contains__)
    assert len(opened) == 41
    assert len(decoded) == 10
    assert gathered.num_known == 30
    assert gathered.source.images[:9, 0, 0, 0].tolist() == list(range(0, 36, 4))
    unseen = gathered.distinct(first_id=700)
    assert (unseen.num_known, unseen.num_repeated, len(unseen.names)) == (30, 0, 10)
    assert unseen.source.ids.tolist() == list(range(700, 710))
    plain = gather(["."], scratch, is_known=known.__contains__)
    assert (plain.names, plain.digests, plain.num_known) == (unseen.names, unseen.digests, unseen.num_known)
    assert gather(["00.png"], scratch, side=16, is_known=lambda digest: True).source.image_size == (16, 16)


@pytest.mark.parametrize("side", [None, 4])
def test_chunks_of_any_size_keep_pixels_with_their_names(
    forty: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, side: int | None
) -> None:
    (forty / "13.png").unlink()
    for chunk in (1, 7, 40, 512):
        monkeypatch.setattr("ccl.data.ingest.CHUNK", chunk)
        gathered = gather(["."], scratch, side=side)
        assert [int(Path(name).stem) for name in gathered.names] == [at for at in range(40) if at != 13]
        assert _shades(gathered)[:37] == [at for at in range(38) if at != 13]


def test_arrays_and_bytes_are_brought_to_a_side_too() -> None:
    for images in ([np.full((9, 12), shade, np.uint8) for shade in range(3)], [_png(shade) for shade in range(3)]):
        gathered = gather_arrays(images, side=2)
        assert gathered.source.images[:, 0, 1, 1].tolist() == [0, 1, 2]
        assert gathered.source.image_size == (2, 2)
        assert gathered.digests == gather_arrays(images).digests


def test_the_number_of_threads_and_the_size_of_chunks_change_nothing(
    here: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, _ = _planted()
    _fill(here, files)
    outcomes = []
    for num_threads, chunk in ((1, 2048), (7, 2048), (3, 10)):
        monkeypatch.setattr(os, "cpu_count", lambda num=num_threads: num)
        monkeypatch.setattr("ccl.data.ingest.CHUNK", chunk)
        gathered = gather(["."], scratch)
        outcomes.append((gathered.names, gathered.digests, gathered.skipped))
    assert outcomes[0] == outcomes[1] == outcomes[2]


# -- arrays --

PIXELS = np.random.default_rng(1).integers(0, 256, (6, 5, 3), dtype=np.uint8)
GREY = np.repeat(PIXELS[:, :, :1], 3, axis=2)
SHARES = PIXELS / 255.0
OPAQUE = np.concatenate([PIXELS, np.full((6, 5, 1), 255, np.uint8)], axis=2)


def _tensor(pixels: np.ndarray) -> torch.Tensor:  # type: ignore[type-arg]
    return torch.from_numpy(pixels.copy())


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (PIXELS, PIXELS),
        (PIXELS.transpose(2, 0, 1), PIXELS),
        (np.asfortranarray(PIXELS), PIXELS),
        (PIXELS[::-1][::-1], PIXELS),
        (SHARES, PIXELS),
        (SHARES.astype(np.float32).transpose(2, 0, 1), PIXELS),
        (SHARES.astype(np.float16), PIXELS),
        (SHARES * 1.00001 - 0.000005, PIXELS),  # rounding may carry it over the edge
        (_tensor(PIXELS), PIXELS),
        (_tensor(PIXELS).permute(2, 0, 1), PIXELS),
        (_tensor(SHARES).requires_grad_(), PIXELS),
        (_tensor(SHARES).half().permute(2, 0, 1), PIXELS),
        (Image.fromarray(PIXELS), PIXELS),
        (Image.fromarray(OPAQUE), PIXELS),
        (PIXELS[:, :, 0], GREY),
        (PIXELS[:, :, :1], GREY),
        (PIXELS[None, :, :, 0], GREY),
        (_tensor(PIXELS[:, :, 0]), GREY),
        (_tensor(SHARES[:, :, 0])[None], GREY),
        (Image.fromarray(PIXELS[:, :, 0]), GREY),
        (Image.new("RGBA", (5, 6)), np.full((6, 5, 3), 255, np.uint8)),  # clear: the white below it
        (np.full((6, 5), 0.5, np.float32), np.full((6, 5, 3), 128, np.uint8)),
        (torch.full((6, 5), 0.5, dtype=torch.bfloat16), np.full((6, 5, 3), 128, np.uint8)),
    ],
)
def test_every_kind_of_array_becomes_rgb(image: object, expected: np.ndarray) -> None:  # type: ignore[type-arg]
    gathered = gather_arrays([image])
    assert np.array_equal(gathered.source.images[0].permute(1, 2, 0).numpy(), expected)
    assert gathered.names == ("image 0",)
    assert gathered.digests == gather_arrays([expected]).digests  # of the pixels, however they came
    assert gathered.found.notes == ()


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (np.full((4, 4, 3), np.nan), "holds NaN or infinity"),
        (torch.full((3, 4, 4), torch.inf), "holds NaN or infinity"),
        (
            PIXELS.astype(np.float32),
            r"has floats from [\d.]+ to 25\d, and they must lie in \[0, 1\]; divide bytes by 255",
        ),
        (np.eye(5) - 0.5, "has floats from -0.5 to 0.5, .*undo the normalisation"),
        (PIXELS.astype(np.int64), "is of type int64; give uint8, or floats"),
        (PIXELS.astype(np.uint16), "is of type uint16"),
        (PIXELS > 9, "is of type bool"),
        (PIXELS.astype(complex), "is of type complex128"),
        (OPAQUE, r"has the shape \(6, 5, 4\); .*give the colours alone, or RGB with alpha as a PIL picture"),
        (_tensor(OPAQUE).permute(2, 0, 1) / 255, r"has the shape \(4, 6, 5\); .*give the colours alone"),
        (np.zeros((5, 4, 2), np.uint8), r"has the shape \(5, 4, 2\)"),
        (np.zeros((7, 4, 5), np.uint8), r"has the shape \(7, 4, 5\)"),
        (np.zeros(4, np.uint8), r"has the shape \(4,\)"),
        (np.zeros((), np.uint8), r"has the shape \(\)"),
        (np.zeros((0, 4, 3), np.uint8), r"has the shape \(0, 4, 3\)"),
        (np.zeros((2, 4, 4, 3), np.uint8), r"has the shape \(2, 4, 4, 3\)"),
        (torch.zeros(3, 4, 4, dtype=torch.uint8).to_sparse(), "is not a plain tensor"),
        (Image.new("L", (9000, 9000)), "can't be used: 9000×9000 pixels exceed the limit"),
        ((PIXELS, 3), "is of type tuple; give an array"),
        (None, "is of type NoneType"),
        (17, "is of type int"),
        ("gone.png", "there is no file 'gone.png'"),
        (Path("/"), "there is no file '/'"),
    ],
)
def test_what_is_no_image_is_named_by_its_position(image: object, told: str) -> None:
    with pytest.raises(UserError, match=f"^image 2: {told}") as caught:
        gather_arrays(iter([PIXELS, PIXELS, image]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_array_of_four_dimensions_is_a_batch(form: Callable[..., object], is_first: bool) -> None:
    batch = np.random.default_rng(2).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    gathered = gather_arrays(form(batch.transpose(0, 3, 1, 2).copy() if is_first else batch))  # type: ignore[arg-type]
    assert torch.equal(gathered.source.images, torch.from_numpy(batch).permute(0, 3, 1, 2))
    assert gathered.names == ("image 0", "image 1", "image 2", "image 3")
    assert gathered.source.ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("images", "told"),
    [
        (PIXELS, r"shape \(6, 5, 3\) is not a batch .*put a single image into a list"),
        (torch.zeros(5, 5), r"shape \(5, 5\) is not a batch"),
        ([], "no images are given"),
        (np.zeros((0, 4, 4, 3), np.uint8), "no images are given"),
        (7, "must be an iterable, not int"),
    ],
)
def test_what_is_no_batch(images: object, told: str) -> None:
    with pytest.raises(UserError, match=told):
        gather_arrays(images)  # type: ignore[arg-type]


def test_single_things_are_taken_as_one(here: Path) -> None:
    _fill(here, {"1.png": _png(4)})
    for image in (_png(4), "1.png", Path("1.png"), Image.new("RGB", (2, 2), (4, 0, 0)), bytearray(_png(4))):
        assert _shades(gather_arrays(image)) == [4]  # type: ignore[arg-type]


def test_where_channels_could_be_first_or_last(here: Path) -> None:
    values = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    as_array, as_tensor = gather_arrays([PIXELS, values]), gather_arrays([_tensor(values)])
    assert as_array.source.picture(1).size == (4, 3)
    assert as_tensor.source.picture(0).size == (3, 4)


def test_arrays_of_many_sizes_and_files_are_kept_encoded(here: Path) -> None:
    _fill(here, {"5.png": _png(5)})
    small, large = np.full((2, 3, 3), 1, np.uint8), np.full((9, 9), 2, np.uint8)
    images = [small, small + 2, large, _png(4), "5.png", Image.new("RGBA", (4, 4), (6, 0, 0, 255)), small]
    gathered = gather_arrays(iter(images))
    assert isinstance(gathered.source, EncodedSource)
    assert _shades(gathered) == [1, 3, 2, 4, 5, 6, 1]
    assert gathered.source.picture(0).size == (3, 2)
    assert gathered.source.encoded(3) == _png(4)
    assert gathered.names == ("image 0", "image 1", "image 2", "image 3", "5.png", "image 5", "image 6")
    assert gathered.digests[0] == gathered.digests[6] == gather_arrays([small]).digests[0]  # alone or not
    assert gathered.digests[4] == gather_arrays([_png(5)]).digests[0]
    assert len(set(gathered.digests)) == 6


def test_digests_are_of_pixels_or_of_the_bytes_of_a_file() -> None:
    pixels, file = np.full((2, 3, 3), 7, np.uint8), _png(3)
    for images in ([pixels, pixels, file], [pixels], [file]):
        for image, digest in zip(images, gather_arrays(images).digests, strict=True):
            content = image if isinstance(image, bytes) else b"(2, 3, 3)" + image.tobytes()
            assert digest == hashlib.blake2b(content, digest_size=16).digest()


def test_the_shape_is_part_of_the_content() -> None:
    assert len(set(gather_arrays([np.zeros((2, 8), np.uint8), np.zeros((8, 2), np.uint8)]).digests)) == 2


def test_bytes_that_are_no_image_are_listed_by_number() -> None:
    files = [_png(number) for number in range(40)]
    files[8] = b"<html>"
    gathered = gather_arrays(files)
    assert [image.path for image in gathered.skipped] == ["image 8"]
    assert gathered.names[7:9] == ("image 7", "image 9")
    assert _shades(gathered) == [shade for shade in range(40) if shade != 8]
    assert len(gathered.digests) == 39
    files[:] = [b"?"] * 3 + files[:37]
    with pytest.raises(UserError, match=r"^4 of 40 images can't be decoded, the first is image 0: "):
        gather_arrays(files)


def test_a_picture_turns_upright_and_one_that_is_broken_is_named() -> None:
    picture = Image.new("RGB", (4, 2), (9, 0, 0))
    picture.getexif()[0x0112] = 6
    assert gather_arrays([picture]).source.image_size == (4, 2)
    broken = Image.open(io.BytesIO(_png(size=(640, 640), format_name="JPEG")[:-100]))
    with pytest.raises(UserError, match=r"^image 1: can't be used: .*truncated"):
        gather_arrays([picture, broken])


def test_endless_lines_are_no_paths(here: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding_images, "_MAX_LINE", 100)
    (here / "list.txt").write_bytes(b"x" * 10_000)
    with pytest.raises(UserError, match=f"line 1: there is no file or folder '{'x' * 100}'"):
        gather(["list.txt"], scratch)


def test_a_chunk_that_keeps_whole_files_is_bounded_in_bytes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        Image.new("RGB", (40, 40), (number, 0, 0)).save(here / f"{number}.png")
    monkeypatch.setattr("ccl.data.ingest._HELD_BYTES", 1)
    chunks = ingest(find_images([str(here)], here / "scratch"), side=8, keeps_files=True)
    assert [len(chunk.source) for chunk in chunks] == [1] * 6
