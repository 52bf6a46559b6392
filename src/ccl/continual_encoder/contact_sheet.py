"""What a search found, to look at: one HTML page that needs nothing else, or one PNG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from ccl.atomic_files import replacing
from ccl.continual_encoder.output_checks import check_target
from ccl.errors import UserError
from ccl.report.drawing import short
from ccl.report.templates import render
from ccl.report.thumbnails import small_picture, thumbnail

MOST_IMAGES = 2000  # on one sheet: a page of some 10 MB
_SIDE = 144  # longest side of an image
_GAP, _LINE, _LABEL = 12, 15, 20  # of the PNG, in pixels; and the signs of a name that fit below an image
_TITLE = 20  # pixels of the title's line
_PAPER, _INK, _SOFT, _TINT = "#fdfdfc", "#1d2126", "#5c6670", "#f2f4f5"


@dataclass(frozen=True)
class SheetImage:
    """An image by its name and its file's bytes; None where it is no longer there."""

    name: str
    content: bytes | None


@dataclass(frozen=True)
class Answer:
    """A query and what is nearest to it, best first."""

    query: SheetImage
    hits: tuple[tuple[SheetImage, float], ...]  # with the similarity
    # For each hit the share of all pairs of the collection that are less alike, 0 to 1; none where there are no pairs
    ranks: tuple[float, ...] = ()

    @property
    def labels(self) -> list[str]:
        """What each similarity is worth, in words."""
        if not self.ranks:
            return [f"cosine {similarity:.3f}" for _, similarity in self.hits]
        return [rank_in_words(rank) for rank in self.ranks]


def rank_in_words(rank: float) -> str:
    """ "nearer than 99.8 % of pairs": rounded down, so that nothing is nearer than all that isn't."""
    if rank >= 1:
        return "nearer than all pairs"
    return f"nearer than {math.floor(1000 * rank) / 10:.1f} % of pairs"


def check_sheet_target(path: Path) -> None:
    """Refuse, before any image is read, a file that could not be written."""
    check_target(path, _WRITERS, "a contact sheet")


def check_sheet_size(num_queries: int, k: int) -> None:
    """Refuse, before the images are searched, what nobody could look at."""
    if num_queries * (1 + k) > MOST_IMAGES:
        raise UserError(
            f"{num_queries:,} queries with {k} hits each are too many for a sheet, which has room for "
            f"{MOST_IMAGES:,} images; ask with fewer, or with a smaller -k"
        )


def write_sheet(path: str | Path, answers: Sequence[Answer], title: str) -> None:
    """Write the page or the picture, as the suffix says; a reader never meets half of it.

    >>> rows = torch.eye(3)
    >>> photos = ccl.Collection(rows, ["a.jpg", "b.jpg", "c.jpg"], content=lambda position: None)
    >>> ccl.write_sheet("similar.html", ccl.find_similar(photos, photos, k=2), "Most alike")
    """
    path = Path(path)
    check_sheet_target(path)
    with replacing(path) as unfinished:
        _WRITERS[path.suffix](unfinished, answers, title)


def _write_page(path: Path, answers: Sequence[Answer], title: str) -> None:
    rows = [
        (
            (answer.query.name, _thumbnail(answer.query)),
            [
                (image.name, _thumbnail(image), label, f"cosine {similarity:.3f}" if answer.ranks else "")
                for (image, similarity), label in zip(answer.hits, answer.labels, strict=True)
            ],
        )
        for answer in answers
    ]
    is_ranked = any(answer.ranks for answer in answers)
    page = render("ccl.continual_encoder", "contact_sheet.html.j2", title=title, rows=rows, is_ranked=is_ranked)
    path.write_text(page, encoding="utf-8", errors="replace")  # a file's name may hold bytes that are not text


def _thumbnail(image: SheetImage) -> object:
    return None if image.content is None else thumbnail(image.content, _SIDE)


def _write_picture(path: Path, answers: Sequence[Answer], title: str) -> None:
    columns = 1 + max(len(answer.hits) for answer in answers)
    width, height = _SIDE + _GAP, _SIDE + 2 * _LINE + _GAP
    top = _TITLE + 2 * _LINE + _GAP
    sheet = Image.new("RGB", (columns * width + 2 * _GAP, top + len(answers) * height + _GAP), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    draw.text((_GAP, _GAP), short(title, 20 * columns), _INK, ImageFont.load_default(15))
    draw.text((_GAP, _GAP + _TITLE), "each hit: nearer than so many of all pairs of the collection", _SOFT, font)
    for row, answer in enumerate(answers):
        labels = [label.removeprefix("nearer than ") for label in answer.labels]
        cells = [(answer.query, "query"), *zip((image for image, _ in answer.hits), labels, strict=True)]
        for column, (image, label) in enumerate(cells):
            left = _GAP + column * width + (_GAP if column else 0)  # the query stands a little apart
            _place(sheet, draw, image, left, top + row * height)
            below = top + row * height + _SIDE
            draw.text((left, below + 1), label, _INK, font)
            draw.text((left, below + _LINE), short(Path(image.name).name, _LABEL), _SOFT, font)
    sheet.save(path, format="PNG", optimize=True)


def _place(sheet: Image.Image, draw: ImageDraw.ImageDraw, image: SheetImage, left: int, top: int) -> None:
    draw.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), _TINT)
    picture = None if image.content is None else small_picture(image.content, _SIDE)
    if picture is None:
        draw.text((left + _GAP, top + _SIDE // 2), "not found", _SOFT, ImageFont.load_default(11))
        return
    enlarged = max(1, _SIDE // max(picture.size))  # whole steps, so that small images keep their pixels
    picture = picture.resize((picture.width * enlarged, picture.height * enlarged), Image.Resampling.NEAREST)
    sheet.paste(picture, (left + (_SIDE - picture.width) // 2, top + (_SIDE - picture.height) // 2))


_WRITERS = {".html": _write_page, ".png": _write_picture}
