"""Decodes of a process, all its threads together, hold less than 300 MB, whatever the headers say."""

import io
import json
import re
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ccl.data import decoding
from ccl.data.decode_memory import MOST_BYTES, Room, bytes_to_decode, orientation
from ccl.data.decoding import BadImageError, decode
from ccl.data.image_sources import EncodedSource
from ccl.views import RECIPES, Viewer

MAX_RISE = 300_000_000
_CHILD = """
import json, re, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from ccl.data import ingest
from ccl.data.finding_images import Found
from ccl.data.image_sources import FileSource

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

ingest._threads = lambda: ThreadPoolExecutor(8)
side, warm, *names = sys.argv[1:]
look = lambda names: ingest.collected(Found(FileSource(names)), int(side) or None, max_bad=100)
look([warm] * 8)
before = peak()
seen = look(names)
bad = {bad.path: bad.reason for bad in seen.skipped}
print(json.dumps({"rise": peak() - before, "bad": bad, "sizes": len(seen.source)}))
"""


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def _deep_png(width: int, height: int, colour: int, channels: int) -> bytes:
    """16 bits a channel, all of them white."""
    packer, row = zlib.compressobj(1), b"\0" + b"\xff" * (2 * channels * width)
    pixels = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)),
        (b"IDAT", pixels),
        (b"IEND", b""),
    ]
    packed = (struct.pack(">I", len(one)) + k + one + struct.pack(">I", zlib.crc32(k + one)) for k, one in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _made(kind: str, width: int, height: int) -> bytes:
    """A picture of one colour, in a file of some kilobytes."""
    rgb, exif = Image.new("RGB", (width, height), (10, 200, 30)), Image.Exif()
    exif[0x0112] = 6
    grey = rgb.convert("L")
    match kind:
        case "PNG RGB" | "JPEG":
            return _saved(rgb, kind.split()[0])
        case "JPEG turned":
            return _saved(rgb, "JPEG", exif=exif)
        case "PNG turned":
            return _saved(rgb, "PNG", exif=exif)
        case "JPEG progressive":
            return _saved(rgb, "JPEG", progressive=True, subsampling=0)
        case "TIFF one strip":
            return _saved(rgb, "TIFF", compression="tiff_deflate", strip_size=1 << 31)
        case "TIFF":
            return _saved(rgb, "TIFF", compression="tiff_lzw")
        case "WEBP":
            return _saved(rgb, "WEBP", lossless=True, method=0)
        case "GIF with transparency":
            return _saved(rgb.quantize(2), "GIF", transparency=1)
        case "palette with transparency":
            return _saved(rgb.quantize(2), "PNG", transparency=1)
        case "PNG RGBA":
            return _saved(rgb.convert("RGBA"), "PNG")
        case "16 bits":
            return _deep_png(width, height, 0, 1)
        case "16 bits RGBA":
            return _deep_png(width, height, 6, 4)
        case "CMYK":
            return _saved(rgb.convert("CMYK"), "JPEG")
        case _:
            return _saved(grey, "PNG")


KINDS = (
    *("PNG RGB", "PNG turned", "JPEG", "JPEG turned", "JPEG progressive", "TIFF", "TIFF one strip", "WEBP", "CMYK"),
    *("GIF with transparency", "palette with transparency", "PNG RGBA", "16 bits", "16 bits RGBA", "grey"),
)


def _side_within(kind: str) -> int:
    """Of the largest square picture of a kind that is accepted."""
    for side in range(7999, 0, -500):
        with Image.open(io.BytesIO(_made(kind, 64, 64))) as image:
            share = min(
                bytes_to_decode(image, orientation(image), by)
                for by in ((1, 2, 4, 8) if image.format == "JPEG" else (1,))
            )
            if share / 64**2 * side**2 <= MOST_BYTES:
                return side
    raise AssertionError(kind)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("side", [0, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_eight_threads_near_the_limit_and_beyond_it(tmp_path: Path, kind: str, side: int) -> None:
    accepted = _side_within(kind)
    near, beyond = _made(kind, accepted, accepted), _made(kind, 7999, 7999)
    names = []
    for number, content in enumerate([near] * 8 + [beyond] * 8):
        names.append(str(tmp_path / f"{number:02}.png"))
        Path(names[-1]).write_bytes(content)
    (tmp_path / "warm.png").write_bytes(_made(kind, 64, 64))
    command = [sys.executable, "-c", _CHILD, str(side), str(tmp_path / "warm.png"), *names]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=800).stdout)
    assert told["rise"] < MAX_RISE + sum(map(len, [near, beyond])) * 8  # the files themselves, which are small here
    assert not set(names[:8]) & told["bad"].keys()
    for reason in told["bad"].values():
        assert re.match(
            r"7999×7999 pixels of \w+ \(.*\) would take [\d,]+ bytes to decode, and 270,000,000 are", reason
        )


def test_a_phone_s_48_megapixels_are_accepted() -> None:
    for kind in ("JPEG", "JPEG turned", "PNG RGB"):
        content = _made(kind, 64, 48)
        with Image.open(io.BytesIO(content)) as image:
            share = bytes_to_decode(image, orientation(image), 2 if kind == "JPEG turned" else 1) / (64 * 48)
        assert share * 8064 * 6048 <= MOST_BYTES, kind


@pytest.mark.parametrize("kind", ["JPEG", "JPEG turned"])
def test_a_photo_that_would_take_too_much_is_decoded_smaller_and_shows_the_same(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    across, down = np.meshgrid(np.linspace(0, 255, 320), np.linspace(0, 255, 240))
    exif = Image.Exif()
    exif[0x0112] = 6 if "turned" in kind else 1
    picture = Image.fromarray(np.stack([across, down, 255 - across], 2).astype(np.uint8))
    content = _saved(picture, "JPEG", quality=95, exif=exif)
    source = EncodedSource([content])
    viewer = Viewer(replace(RECIPES["moco_imagenet"], size=100), 0)

    def views() -> torch.Tensor:
        (batch,) = viewer.batches(source, [torch.tensor([0])], num_views=2)
        return torch.cat(batch.views)

    full, whole = decode(io.BytesIO(content)), views()
    monkeypatch.setattr(decoding, "MOST_BYTES", 320 * 240 * 3)  # less than the four bytes of a pixel in memory
    half = decode(io.BytesIO(content))
    assert half.size == (full.width // 2, full.height // 2)
    near = np.asarray(full.resize(half.size, Image.Resampling.BOX), int) - np.asarray(half, int)
    assert np.abs(near).max() <= 4
    assert (views() - whole).abs().mean() < 0.05
    with pytest.raises(BadImageError, match=r"320×240 pixels of PNG \(RGB\) would take .* make it smaller, or save it"):
        decode(io.BytesIO(_saved(picture, "PNG")))


def test_a_turn_that_is_said_behind_the_pixels_is_made() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = _saved(Image.new("RGB", (4, 2)), "PNG", exif=exif)
    start = content.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(content[start : start + 4], "big")
    late = content[:start] + content[end:-12] + content[start:end] + content[-12:]
    assert decode(io.BytesIO(content)).size == decode(io.BytesIO(late)).size == (2, 4)


def test_threads_share_the_room() -> None:
    room, most, now, lock = Room(100), [0], [0], threading.Lock()

    def work(num_bytes: int) -> None:
        with room.held(num_bytes):
            with lock:
                now[0] += num_bytes
                most[0] = max(most[0], now[0])
            time.sleep(0.001)
            with lock:
                now[0] -= num_bytes

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [100, 30, 60, 10, 100, 50, 50, 1] * 8))
    assert 50 < most[0] <= 100
