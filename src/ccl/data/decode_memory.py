"""What a decode takes in memory, known from the header, and the room that all decodes of a process share."""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import ExifTags, Image

MOST_BYTES = 270_000_000  # of all pictures of a process that are being decoded, beside their files
# Of one piece: large ones go back to the system when they are let go, and Pillow's 16 MB would stay with their thread.
Image.core.set_block_size(1 << 28)  # type: ignore[attr-defined]
_LARGE = 1 << 25  # bytes of a decode after which freed memory is given back
DIVISORS = (1, 2, 4, 8)  # of the sides, that JPEG decoders offer
JPEGS = ("JPEG", "MPO")  # the second is what phones write where they add a depth map


def orientation(image: Image.Image, is_loaded: bool = True) -> int:
    """EXIF's number from 1 to 8 for how the picture was held, 1 for upright or where only the pixels' end says it."""
    if not is_loaded and image.format == "PNG" and not {"exif", "Raw profile type exif"} & image.info.keys():
        return 1  # Pillow would read the whole file to look behind its pixels
    found = image.getexif().get(ExifTags.Base.Orientation)
    return next((number for number in range(1, 9) if number == found), 1)


def bytes_to_decode(image: Image.Image, turn: int, divisor: int = 1) -> int:
    """At its peak, from the opened file to upright RGB, as measured; `divisor`: of a JPEG that is decoded smaller."""
    full = image.width * image.height
    pixels = full // (divisor * divisor)
    own = pixels * {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}.get(image.mode, 4)
    made = 0 if image.mode == "RGB" and "transparency" not in image.info else 4 * pixels
    return max(own + _of_decoder(image, full), own + made, 4 * pixels * (1 if turn == 1 else 2))


def _of_decoder(image: Image.Image, pixels: int) -> int:
    """What Pillow's decoder holds beside the picture."""
    if image.format == "WEBP":
        return 16 * pixels  # two canvases, a copy, and of some lossless ones a further one
    if image.format in JPEGS and not _is_of_one_scan(image):  # the coefficients of all scans
        layers = [(across, down) for _, across, down, _ in image.layer]  # type: ignore[attr-defined]
        densest = int(max(across for across, _ in layers) * max(down for _, down in layers))
        return 2 * pixels * int(sum(across * down for across, down in layers)) // densest
    if image.format == "TIFF":  # a strip or tile, which may be larger than the picture
        tags = image.tag_v2  # type: ignore[attr-defined]
        width, rows = tags.get(322, image.width), tags.get(323, tags.get(278, image.height))
        samples = sum(tags.get(258, (1,))) if tags.get(284, 1) == 1 else max(tags.get(258, (1,)))
        is_plain = tags.get(259, 1) == 1 and 322 not in tags
        return 0 if is_plain else int(width) * min(int(rows), max(image.height, int(tags.get(323, 0)))) * samples // 8
    if image.format == "PPM" and image.tile and image.tile[0][0] == "ppm_plain":  # type: ignore[attr-defined]
        return 13 * pixels
    return 0


def _is_of_one_scan(image: Image.Image) -> bool:
    """Whether a JPEG's first scan holds all its channels, and all their bits."""
    file, layers = image.fp, image.layers  # type: ignore[attr-defined]
    if image.info.get("progressive") or file is None:
        return False
    place = file.tell()
    file.seek(2)
    while len(segment := file.read(4)) == 4 and segment[0] == 0xFF and segment[1] != 0xDA:
        file.seek(int.from_bytes(segment[2:]) - 2, os.SEEK_CUR)
    is_whole = segment[:2] == b"\xff\xda" and file.read(1) == bytes([layers])
    file.seek(place)
    return bool(is_whole)


class Room:
    """So many bytes for all threads; who needs more than are left waits."""

    def __init__(self, num_bytes: int) -> None:
        self._all = num_bytes
        self.reset()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self.reset)  # a thread of the parent may hold some

    def reset(self) -> None:
        self._left, self._changed = self._all, threading.Condition()

    @contextmanager
    def held(self, num_bytes: int) -> Iterator[None]:
        """So many bytes, of which there are enough when nobody else holds any."""
        with self._changed:
            self._changed.wait_for(lambda: self._left >= num_bytes)
            self._left -= num_bytes
        try:
            yield
        finally:
            if num_bytes > _LARGE:
                give_back_memory()  # what a decoder had; each thread would keep its own
            with self._changed:
                self._left += num_bytes
                self._changed.notify_all()


ROOM = Room(MOST_BYTES)


def give_back_memory() -> None:
    """Return freed memory to the system, where it has a call for that (glibc); takes some milliseconds."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
