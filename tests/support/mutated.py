"""Damaged files from sound ones, by a seed: bits flipped, parts cut, doubled or swapped, numbers of headers blown up.

Run as `python mutated.py KIND COUNT FOLDER`, it lets `ccl` read so many of them and reports in JSON what came of it.
"""

import gzip
import io
import json
import random
import re
import resource
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

LONGEST = 400  # of a message


def pictures() -> dict[str, bytes]:
    """Small sound files of every format and mode."""
    rng = np.random.default_rng(0)
    rgb = Image.fromarray(rng.integers(0, 256, (23, 31, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    deep = Image.fromarray(rng.integers(0, 1 << 16, (9, 11), dtype=np.uint16))
    floats = Image.fromarray(rng.random((9, 11), dtype=np.float32))
    wanted = {
        "rgb.png": (rgb, "PNG", {"exif": exif}),
        "rgba.png": (rgb.convert("RGBA"), "PNG", {}),
        "palette.png": (rgb.quantize(9), "PNG", {"transparency": 1}),
        "deep.png": (deep, "PNG", {}),
        "rgb.jpg": (rgb, "JPEG", {"exif": exif}),
        "progressive.jpg": (rgb, "JPEG", {"progressive": True}),
        "cmyk.jpg": (rgb.convert("CMYK"), "JPEG", {}),
        "lossy.webp": (rgb, "WEBP", {}),
        "alpha.webp": (rgb.convert("RGBA"), "WEBP", {"lossless": True}),
        "moving.gif": (rgb, "GIF", {"save_all": True, "append_images": [rgb.rotate(90)]}),
        "plain.tif": (rgb, "TIFF", {}),
        "lzw.tif": (rgb, "TIFF", {"compression": "tiff_lzw"}),
        "jpeg.tif": (rgb, "TIFF", {"compression": "jpeg"}),
        "deep.tif": (deep, "TIFF", {"compression": "tiff_deflate"}),
        "floats.tif": (floats, "TIFF", {}),
        "rgb.bmp": (rgb, "BMP", {}),
        "palette.bmp": (rgb.quantize(5), "BMP", {}),
        "rgb.ppm": (rgb, "PPM", {}),
        "grey.pgm": (rgb.convert("L"), "PPM", {}),
    }
    made = {}
    for name, (image, kind, options) in wanted.items():
        file = io.BytesIO()
        image.save(file, kind, **options)
        made[name] = file.getvalue()
    return made | {"plain.ppm": b"P3 3 2 255 " + b"9 " * 18}


def archives() -> dict[str, bytes]:
    """Small sound archives, and shards."""
    inner = {f"n{at % 2}/{at}.{name}": content for at, (name, content) in enumerate(pictures().items())}
    inner |= {"n0/0.cls": b"cat", "n1/1.json": b'{"label": 3}', "../up.png": inner["n0/0.rgb.png"]}
    packed, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in inner.items():
            archive.writestr(name, content)
    with tarfile.open(fileobj=tarred, mode="w") as tar:
        for name, content in inner.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    made = {"a.zip": packed.getvalue(), "a.tar": tarred.getvalue(), "a.tar.gz": gzip.compress(tarred.getvalue())}
    made["shard.tar"] = tarred.getvalue()
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return made
    file = io.BytesIO()
    rows = [{"bytes": content, "path": name} for name, content in pictures().items()]
    pq.write_table(pa.table({"image": rows, "label": [at % 3 for at in range(len(rows))]}), file, row_group_size=7)
    return made | {"shard.parquet": file.getvalue()}


_NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


def mutated(content: bytes, other: bytes, draw: random.Random) -> bytes:
    """One to four kinds of damage, nearer to the beginning or the end, where headers and footers are."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        size = max(len(made), 1)
        at = {0: draw.randrange(min(size, 64)), 1: size - 1 - draw.randrange(min(size, 128))}.get(
            draw.randrange(3), draw.randrange(size)
        )
        match draw.randrange(6):
            case 0 if made:
                made[at] ^= 1 << draw.randrange(8)
            case 1:
                del made[at : size if draw.random() < 0.3 else at + draw.randint(1, 40)]
            case 2:
                made[at:at] = made[at : at + draw.randint(1, 200)] * draw.randint(1, 5)
            case 3:
                start = draw.randrange(max(len(other), 1))
                made[at : at + 32] = other[start : start + draw.randint(1, 64)]
            case 4:
                width = draw.choice((1, 2, 4))
                number = draw.choice(_NUMBERS) & ((1 << 8 * width) - 1)
                made[at : at + width] = number.to_bytes(width, draw.choice(("big", "little")))
            case _:
                made[at : at + 8] = draw.randbytes(8)
    return bytes(made)


def peak() -> int:
    """Bytes that this process has held at most."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def main(kind: str, count: int, folder: Path) -> dict[str, object]:
    """Read so many, and say how many were sound, bad with a reason, or failed in another way."""
    from ccl.data import BadImageError, find_images
    from ccl.data.decoding import decode
    from ccl.data.ingest import collected
    from ccl.errors import UserError

    def look(name: str, content: bytes) -> str:
        if kind == "pictures":
            return str(decode(io.BytesIO(content)).size)
        path = folder / "in" / name
        path.write_bytes(content)
        found = find_images(f"shards:{path}" if name.startswith("shard") else str(path), folder / "scratch")
        return "\n".join(bad.reason for bad in collected(found, 8, max_bad=100).skipped)

    made = pictures() if kind == "pictures" else archives()
    names = sorted(made)
    (folder / "in").mkdir(parents=True)
    for name in names:
        look(name, made[name])
    before, seen, faults = peak(), Counter[str](), list[str]()
    for number in range(count):
        draw = random.Random(f"{kind} {number}")
        name = names[number % len(names)]
        content = mutated(made[name], made[draw.choice(names)], draw)
        try:
            told, what = look(name, content), "read"
        except (BadImageError, UserError) as error:
            told, what = str(error), "refused"
        except Exception as error:
            told, what = "", "failed"
            faults.append(f"{name} {number}: {type(error).__name__}: {error}")
        lines = told.splitlines() if what == "read" else [told]
        if what != "failed" and any("\n" in line or len(line) > LONGEST + 3 * len(str(folder)) for line in lines):
            faults.append(f"{name} {number}: {told!r}")
        seen[what] += 1
    return {"seen": seen, "faults": faults, "rise": peak() - before}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
