"""Small files that stand for huge images are refused from their headers, before memory is spent on them."""

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from PIL import Image

SIDE = 12_000  # 144 million pixels: Pillow itself only warns
MAX_RISE = 300_000_000
_CHILD = """
import json, re, sys
from pathlib import Path
from ccl.data import load_dataset

def peak():
    # Of this program alone: getrusage would count the parent's memory before exec.
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

load_dataset("folder:warm", sys.argv[1])
before = peak()
dataset = load_dataset("folder:bombs", sys.argv[1])
first = {path.name: dataset.train.picture(n).getpixel((0, 0)) for n, path in enumerate(map(Path, dataset.train.names))}
bad = {Path(bad.path).name: bad.reason for bad in dataset.skipped}
print(json.dumps({"rise": peak() - before, "bad": bad, "first": first}))
"""


def _zeros(num_bytes: int) -> bytes:
    """Compressed, and never whole in memory."""
    packer = zlib.compressobj(9)
    block = bytes(1_000_000)
    parts = [packer.compress(block[: min(len(block), num_bytes - at)]) for at in range(0, num_bytes, len(block))]
    return b"".join([*parts, packer.flush()])


def _png(side: int, pixels: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """Grey of 8 bits, with further chunks before the pixels."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)), *extra, (b"IDAT", pixels), (b"IEND", b"")]
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _gif(*frame_sides: int) -> bytes:
    """A screen of 2×2 in two colours, (10, 20, 30) first, and frames of any size with data for 2×2 pixels."""
    frames = [
        b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x03" + bytes([0x04, 0x00, 0x05]) + b"\x00"
        for side in frame_sides
    ]
    return b"GIF89a" + struct.pack("<HHBBB", 2, 2, 0x80, 0, 0) + bytes([10, 20, 30, 0, 0, 0]) + b"".join(frames) + b";"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_bombs_cost_no_memory(tmp_path: Path) -> None:
    huge = _zeros(400_000_000)  # as decompressed
    planted = {
        "large.png": _png(SIDE, _zeros(SIDE * (SIDE + 1))),
        "frame.gif": _gif(SIDE),  # larger than the screen it is to be shown on
        "text.png": _png(1, _zeros(2), (b"zTXt", b"Comment\0\0" + huge)),
        "profile.png": _png(1, _zeros(2), (b"iCCP", b"name\0\0" + huge)),
        "length.png": _png(1, _zeros(2))[:33] + struct.pack(">I", 0x7FFFFFFF) + b"tEXt" + b"x" * 50,
    }
    for name in ("warm", "bombs"):
        (tmp_path / name).mkdir()
        for number in range(100):
            Image.new("RGB", (2, 2)).save(tmp_path / name / f"sound{number}.png")
    for name, content in planted.items():
        assert len(content) < 500_000
        (tmp_path / "bombs" / name).write_bytes(content)
    (tmp_path / "bombs" / "later.gif").write_bytes(_gif(2, SIDE))
    command = [sys.executable, "-c", _CHILD, str(tmp_path)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    assert told["rise"] < MAX_RISE
    assert told["bad"].keys() == planted.keys()
    for name in ("large.png", "frame.gif"):
        assert told["bad"][name] == "12000×12000 pixels exceed the limit of 64,000,000"
    for name in ("text.png", "profile.png"):
        assert "too large" in told["bad"][name].lower()
    assert told["first"]["later.gif"] == [10, 20, 30]  # only the first frame is ever looked at
