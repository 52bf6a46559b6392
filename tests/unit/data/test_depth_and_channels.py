"""Depth and channels are never changed in silence: what a file does not say is refused with advice, not guessed."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from ccl.data import EncodedSource, TooManyBadError, collected, find_held, gather
from ccl.data.decoding import BadImageError, decode, upright_rgb

ADVICE = "convert all such files to 8 bits a channel first, all in the same way"


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def _of(values: object, dtype: str, kind: str = "TIFF") -> bytes:
    return _saved(Image.fromarray(np.broadcast_to(np.asarray(values, dtype), (6, 5)).copy()), kind)


def _tiff(pixels: bytes, photometric: int, bits: tuple[int, ...], extra: tuple[int, ...] = (), kind: int = 1) -> bytes:
    """Of 2×2 pixels, not compressed, with these tags."""
    tags = ImageFileDirectory_v2()
    values = {256: 2, 257: 2, 258: bits, 259: 1, 262: photometric, 277: len(bits), 278: 2, 279: len(pixels)}
    for tag, value in (values | {273: 0, 339: (kind,) * len(bits)}).items():
        tags[tag] = value
    if extra:
        tags[338] = extra
    file = io.BytesIO()
    file.write(struct.pack("<2sHL", b"II", 42, 8))
    tags.save(file)
    return file.getvalue() + pixels


def _deep_png(colour: int, values: list[int]) -> bytes:
    """One pixel of 16 bits a channel."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0" + struct.pack(f">{len(values)}H", *values))),
        (b"IEND", b""),
    ]
    packed = (struct.pack(">I", len(one)) + k + one + struct.pack(">I", zlib.crc32(k + one)) for k, one in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


REFUSED = {
    "12 bits in 16, PNG": (_of(4095, "uint16", "PNG"), f"largest value 4,095: {ADVICE} (e.g. divide by 16)"),
    "12 bits in 16, TIFF": (_of(3000, "uint16"), f"largest value 3,000: {ADVICE} (e.g. divide by 16)"),
    "14 bits in 16": (_of(16383, "uint16"), "largest value 16,383"),
    "8 bits in 16": (_of(200, "uint16"), "largest value 200"),
    "12 bits in 16, RGB": (_deep_png(2, [4095, 9, 9]), f"all values below 4,096: {ADVICE} (e.g. divide by 16)"),
    "12 bits in 16, RGBA": (_deep_png(6, [4095, 9, 9, 65535]), "all values below 4,096"),
    "12 bits in 16, grey and alpha": (_deep_png(4, [4095, 65535]), "all values below 4,096"),
    "12 bits in 16, RGB TIFF": (_tiff(struct.pack("<12H", *[4095] * 12), 2, (16,) * 3), "all values below 4,096"),
    "12 bits": (_tiff(b"\xff" * 6, 1, (12,)), "largest value 4,095"),
    "negative": (_tiff(struct.pack("<4h", -5, 9, 9, 9), 1, (16,), kind=2), "integers from -5 to 9"),
    "32 bits": (_of(70_000, "int32"), "integers from 0 to 70,000"),
    "signed bytes": (_tiff(b"\xff\x01\x02\x03", 1, (8,), kind=2), "signed integers of 8 bits"),
    "white is 0": (_tiff(struct.pack("<4H", *[65535] * 4), 0, (16,)), "white is 0, in 16 bits a channel"),
    "nan": (_of([0.5, np.nan, 0.1, 0.2, 0.3], "float32"), "some are not finite: replace NaN and infinity"),
    "infinity": (_of(np.inf, "float32"), "some are not finite"),
    "floats to 255": (_of(200.0, "float32"), "floats from 0 to 200, not within [0, 1]"),
    "negative floats": (_of(-0.5, "float32"), "floats from -0.5 to 0, not within [0, 1]"),
    "RGB and infrared": (_tiff(b"\x09" * 16, 2, (8,) * 4), "4 samples a pixel, and the last is not marked as alpha"),
    "RGB and unknown": (_tiff(b"\x09" * 16, 2, (8,) * 4, (0,)), "4 samples a pixel"),
    "five channels": (_tiff(b"\x09" * 20, 2, (8,) * 5, (2, 0)), "5 samples a pixel"),
    "CMYK and more": (_tiff(b"\x09" * 20, 5, (8,) * 5, (0,)), "5 samples a pixel"),
    "grey and unknown": (_tiff(b"\x09" * 8, 1, (8,) * 2, (0,)), "2 samples a pixel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_only_be_guessed_is_refused(name: str) -> None:
    content, told = REFUSED[name]
    with pytest.raises(BadImageError) as caught:
        decode(io.BytesIO(content))
    assert told in caught.value.reason
    assert "\n" not in caught.value.reason
    with pytest.raises(BadImageError), Image.open(io.BytesIO(content)) as picture:  # as its user opened it
        upright_rgb(picture)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (_of(0xFFFF, "uint16", "PNG"), (255, 255, 255)),
        (_of(0x8001, "uint16"), (128, 128, 128)),
        (_of(0, "uint16"), (0, 0, 0)),  # black by any scale
        (_of([1, 0x8000, 2, 3, 4], "uint16"), (0, 0, 0)),
        (_of(0.5, "float32"), (127, 127, 127)),
        (_of(1.00001, "float32"), (255, 255, 255)),  # rounding
        (b"P5 1 1 4095\n\x0f\xff", (255, 255, 255)),  # a header that says its range
        (b"P5 1 1 4095\n\x00\xff", (15, 15, 15)),
        (_deep_png(2, [0xFFFF, 0x1234, 0]), (255, 0x12, 0)),
        (_tiff(struct.pack("<12H", *[0xFFFF, 0x8000, 9] * 4), 2, (16,) * 3), (255, 128, 0)),
        (_tiff(b"\xff\x00\x00\x33" * 4, 2, (8,) * 4, (2,)), (255, 204, 204)),  # alpha, and marked so
        (_tiff(b"\x33\x00\x00\x33" * 4, 2, (8,) * 4, (1,)), (255, 204, 204)),  # the same, multiplied before
        (_tiff(b"\x00\xff\xff\x00" * 4, 5, (8,) * 4), (255, 0, 0)),  # CMYK
        (_tiff(b"\x80\x00\x00" * 4, 8, (8,) * 3), (119, 119, 119)),  # LAB
        (_tiff(b"\x05" * 4, 0, (8,)), (250, 250, 250)),  # white is 0, in 8 bits
    ],
)
def test_what_a_file_says_is_kept(content: bytes, expected: tuple[int, ...]) -> None:
    assert decode(io.BytesIO(content)).getpixel((0, 0)) == expected


def test_a_set_of_them_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.png").write_bytes(_of(4095 - number, "uint16", "PNG"))
    with pytest.raises(
        TooManyBadError, match=r"20 of 20 images .*largest value 4,095: convert all such files to 8 bits"
    ):
        gather([tmp_path], tmp_path / "scratch")


def test_strips_change_no_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (37, 23, 4), dtype=np.uint8)
    picture = Image.fromarray(noise)
    palette = picture.convert("RGB").quantize(17)
    palette.info["transparency"] = bytes(range(0, 255, 15))
    deep = Image.fromarray(noise.view(np.uint32)[:, :, 0].astype(np.uint16))
    kinds = [
        picture,
        picture.convert("LA"),
        palette,
        deep,
        picture.convert("CMYK"),
        Image.fromarray(noise[:, :, 0] / 256),
    ]
    whole = [upright_rgb(one).tobytes() for one in kinds]
    monkeypatch.setattr("ccl.data.picture_modes._STRIP", 50)
    assert [upright_rgb(one).tobytes() for one in kinds] == whole
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    assert whole[0] == Image.alpha_composite(white, picture).convert("RGB").tobytes()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (_of(4095, "uint16", "PNG"), (15, 15, 15)),
        (_of(200.0, "float32"), (200, 200, 200)),
        (_of(25600.0, "float32"), (100, 100, 100)),
        (_tiff(b"\x09\x09\x09\x00" * 4, 2, (8,) * 4), (255, 255, 255)),
    ],
)
def test_what_was_learned_before_looks_as_it_did(content: bytes, expected: tuple[int, ...]) -> None:
    """The rehearsal memory of an encoder folder may hold files that would be refused today."""
    assert EncodedSource([content]).picture(0).getpixel((0, 0)) == expected
    with pytest.raises(TooManyBadError):
        collected(find_held([content]))
