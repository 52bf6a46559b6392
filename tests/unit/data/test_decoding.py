"""Files of every kind become upright RGB of the right values, or a reason why not."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from ccl.data import decoding
from ccl.data.decoding import BadImageError, decode, encode_png


def _file(image: Image.Image, format_name: str, **options: object) -> io.BytesIO:
    buffer = io.BytesIO()
    image.save(buffer, format=format_name, **options)  # type: ignore[arg-type]
    buffer.seek(0)
    return buffer


def _palette() -> Image.Image:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    return image


def _deep(value: int) -> Image.Image:
    return Image.fromarray(np.full((4, 4), value, dtype=np.uint16))


def _float(value: float) -> Image.Image:
    return Image.fromarray(np.full((4, 4), value, dtype=np.float32))


@pytest.mark.parametrize(
    ("image", "format_name", "options", "expected"),
    [
        (_palette(), "PNG", {}, (10, 20, 30)),
        (_palette(), "PNG", {"transparency": 1}, (255, 255, 255)),
        (_palette(), "GIF", {"transparency": 1}, (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 51)), "PNG", {}, (255, 204, 204)),  # a fifth of red on white
        (Image.new("LA", (4, 4), (0, 128)), "PNG", {}, (127, 127, 127)),
        (Image.new("L", (4, 4), 77), "JPEG", {}, (77, 77, 77)),
        (Image.new("1", (4, 4), 1), "PNG", {}, (255, 255, 255)),
        (Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "JPEG", {"quality": 100}, (255, 0, 0)),
        (_deep(0x8001), "PNG", {}, (128, 128, 128)),
        (_deep(0xFFFF), "PNG", {}, (255, 255, 255)),
        (_float(0.5), "TIFF", {}, (127, 127, 127)),
    ],
)
def test_every_mode_becomes_rgb(
    image: Image.Image, format_name: str, options: dict[str, object], expected: tuple[int, ...]
) -> None:
    decoded = decode(_file(image, format_name, **options))
    assert decoded.mode == "RGB"
    assert np.abs(np.asarray(decoded, dtype=int)[1, 1] - expected).max() <= 1


@pytest.mark.parametrize(("orientation", "corner"), [(1, (0, 0)), (3, (3, 1)), (6, (1, 0)), (8, (0, 3))])
def test_exif_rotation_is_applied(orientation: int, corner: tuple[int, int]) -> None:
    image = Image.new("RGB", (4, 2))
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = decode(_file(image, "PNG", exif=exif))
    assert upright.size == ((4, 2) if orientation in (1, 3) else (2, 4))
    assert upright.getpixel(corner) == (255, 255, 255)


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 4), (shade, 0, 0)) for shade in (200, 100)]
    assert decode(_file(frames[0], "GIF", save_all=True, append_images=frames[1:])).getpixel((0, 0)) == (200, 0, 0)


@pytest.mark.parametrize("content", [b"", b"<html></html>", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"])
def test_what_is_no_image_is_refused(content: bytes) -> None:
    with pytest.raises(BadImageError):
        decode(io.BytesIO(content))


def test_a_truncated_file_is_refused() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = _file(Image.fromarray(noise), "JPEG").getvalue()
    with pytest.raises(BadImageError, match="truncated"):
        decode(io.BytesIO(whole[: len(whole) // 2]))


def test_too_many_pixels_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_PIXELS", 15)
    with pytest.raises(BadImageError, match="4×4 pixels exceed the limit"):
        decode(_file(Image.new("RGB", (4, 4)), "PNG"))


def test_too_many_bytes_are_refused_and_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _file(Image.new("RGB", (4, 4)), "PNG").getvalue()
    monkeypatch.setattr(decoding, "MAX_BYTES", len(whole))
    assert decode(io.BytesIO(whole)).size == (4, 4)
    monkeypatch.setattr(decoding, "MAX_BYTES", len(whole) - 1)
    with pytest.raises(BadImageError, match=f"{len(whole)} bytes exceed the limit of {len(whole) - 1}$"):
        decode(io.BytesIO(whole))
    with pytest.raises(BadImageError, match="the file is empty"):
        decode(io.BytesIO())


def test_png_keeps_every_value() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (9, 5, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(decode(io.BytesIO(encode_png(Image.fromarray(noise))))), noise)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_a_reduced_decoding_refuses_what_a_full_one_refuses(options: dict[str, object]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (41, 53, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG", **options)  # type: ignore[arg-type]
    whole = buffer.getvalue()

    def is_sound(content: bytes, divisor: int) -> bool:
        try:
            decode(io.BytesIO(content), lambda width, height: divisor)
        except BadImageError:
            return False
        return True

    judged = [(is_sound(whole[:end], 8), is_sound(whole[:end], 1)) for end in range(0, len(whole) + 1, 7)]
    judged += [(is_sound(whole[:end], 8), is_sound(whole[:end], 1)) for end in range(len(whole) - 40, len(whole) + 1)]
    assert all(reduced == full for reduced, full in judged)
    assert judged[0] == (False, False)
    assert judged[-1] == (True, True)


BOMB = b"P6 10000 10000 255\n" + bytes(300)


def test_pillow_s_warnings_stay_inside() -> None:
    """A TIFF whose tags are cut off is warned of in Pillow, and a bomb."""
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "TIFF")
    code = f"from ccl.data.decoding import *; import io\nfor one in {[file.getvalue()[:60], BOMB]!r}:\n try:\n"
    code += "  decode(io.BytesIO(one))\n except BadImageError: pass"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stderr == ""
