"""Which images are nearest to a query, by cosine similarity of features, and the page that shows them."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl.atomic_files import check_target, replacing
from ccl.continual_encoder.feature_files import read_features, read_parts
from ccl.continual_encoder.frozen_encoder import FrozenEncoder
from ccl.data.decoding import decode
from ccl.errors import UserError
from ccl.report.page_parts import Thumbnail, render, thumbnail

MOST_IMAGES = 2000  # on one sheet: a page of some 10 MB
_SIDE = 144  # longest side of an image on the sheet
_LONGEST_FILE = 1 << 18  # bytes that are held as they are until the sheet is written
_QUERIES, _ROWS = 256, 16384  # compared at one time: 16 MB of similarities
_RANKED = 2000  # rows whose pairs, two million, a similarity is ranked among


def nearest(query_rows: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most similar of rows (N, F) for each of (Q, F): similarities and positions, (Q, k) each, best first.

    With fewer than k rows all of them; equally similar ones stand in their order.
    """
    if query_rows.ndim != 2 or rows.ndim != 2 or query_rows.shape[1] != rows.shape[1]:
        raise ValueError(f"rows must be (Q, F) and (N, F), got {tuple(query_rows.shape)} and {tuple(rows.shape)}")
    if k < 1 or not len(rows) or not len(query_rows):
        raise ValueError("a search needs a query, something to search in, and k of at least 1")
    found = []
    for queries in torch.split(query_rows, _QUERIES):
        found.append(Nearest(queries, k))
        for some in torch.split(rows, _ROWS):
            found[-1].take(some)
    return torch.cat([one.similarities for one in found]), torch.cat([one.positions for one in found])


class Nearest:
    """The k rows most like each query of those that have passed by, and their files, so that none is opened again."""

    def __init__(self, queries: Tensor, k: int) -> None:
        self.queries, self.k, self.num_rows = F.normalize(queries.float(), dim=1), k, 0
        self.similarities = self.queries.new_empty(len(queries), 0)  # (Q, up to k), best first
        self.positions = torch.empty(len(queries), 0, dtype=torch.int64)  # likewise
        self.files: dict[int, bytes] = {}  # by position

    def take(self, rows: Tensor, files: Sequence[bytes] = ()) -> None:
        """The next rows (n, F), and their files where these are to be kept."""
        similarity = self.queries @ F.normalize(rows.float(), dim=1).T  # (Q, n)
        found = similarity.topk(min(self.k, len(rows)), dim=1).indices.sort(dim=1).values
        both = torch.cat([self.similarities, similarity.gather(1, found)], dim=1)
        places = torch.cat([self.positions, self.num_rows + found], dim=1)
        order = torch.sort(both, dim=1, descending=True, stable=True).indices[:, : self.k]
        self.similarities, self.positions = both.gather(1, order), places.gather(1, order)
        if files:
            for place in set(self.positions.flatten().tolist()) - set(self.files):
                self.files[place] = shown_file(files[place - self.num_rows])
            self.files = {place: self.files[place] for place in set(self.positions.flatten().tolist())}
        self.num_rows += len(rows)


def shown_file(content: bytes) -> bytes:
    """A file as it is if it is short, else as a JPEG of the size of a sheet: many of them are held at one time."""
    if len(content) <= _LONGEST_FILE:
        return content
    file, picture = io.BytesIO(), decode(io.BytesIO(content), is_kept=True)
    picture.thumbnail((2 * _SIDE, 2 * _SIDE))
    picture.save(file, format="JPEG", quality=95)
    return file.getvalue()


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


def rank_in_words(rank: float) -> str:
    """ "nearer than 99.8 % of pairs": rounded down, so that nothing is nearer than all that isn't."""
    if rank >= 1:
        return "nearer than all pairs"
    return f"nearer than {math.floor(1000 * rank) / 10:.1f} % of pairs"


@dataclass(frozen=True)
class Collection:
    """Images with their features, and where each one's file is to be had.

    >>> photos = ccl.Collection(torch.eye(3), ["a.jpg", "b.jpg", "c.jpg"], content=lambda position: None)
    >>> photos.shown(1).name
    'b.jpg'
    """

    rows: Tensor  # (N, F)
    names: Sequence[str]
    content: Callable[[int], bytes | None]  # of the image at a position; None where it is gone

    def shown(self, position: int) -> SheetImage:
        return SheetImage(self.names[position], self.content(position))


def stored_collection(path: str | Path, frozen: FrozenEncoder) -> Collection:
    """The collection in a file or folder of features that this encoder made; images are read from their paths.

    >>> encoder, photos = ccl.frozen("my-encoder"), ccl.load_dataset("symbols", images_per_class=1).train
    >>> names = [f"{number}.png" for number in range(len(photos))]
    >>> ccl.write_features("photos.npz", encoder.features(photos), names, encoder.version, encoder.description)
    >>> len(ccl.stored_collection("photos.npz", encoder).names)
    10
    """
    path = Path(path)
    stored = read_parts(path) if path.is_dir() else read_features(path)
    frozen.refuse_other(stored.about, str(path), "make it again with ccl encode, or choose its --version")
    return Collection(stored.rows, stored.names, lambda position: _content(stored.names[position]))


def _content(name: str) -> bytes | None:
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError):  # gone, or a name that no file can have
        return None


def find_similar(queries: Collection, images: Collection, k: int) -> list[Answer]:
    """The k images most like each query, best first, with what a sheet needs to show them.

    >>> rows = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> photos = ccl.Collection(rows, ["a.jpg", "b.jpg", "c.jpg"], content=lambda position: None)
    >>> query = ccl.Collection(rows[:1], ["query.jpg"], content=lambda position: None)
    >>> [answer] = ccl.find_similar(query, photos, k=2)
    >>> [(image.name, round(similarity, 3)) for image, similarity in answer.hits]
    [('a.jpg', 1.0), ('b.jpg', 0.8)]
    """
    similarities, positions = nearest(queries.rows, images.rows, k)
    ranks = pair_ranks(similarities, images.rows)
    answers = []
    for number, (values, places) in enumerate(zip(similarities.tolist(), positions.tolist(), strict=True)):
        hits = tuple((images.shown(place), value) for place, value in zip(places, values, strict=True))
        answers.append(Answer(queries.shown(number), hits, () if ranks is None else tuple(ranks[number].tolist())))
    return answers


def pair_ranks(similarities: Tensor, rows: Tensor) -> Tensor | None:
    """The share of all pairs of different rows (N, F) that are less alike than each similarity; None without pairs.

    Of more than 2,000 rows, so many at even distances stand for all.
    """
    if len(rows) > _RANKED:
        rows = rows[torch.linspace(0, len(rows) - 1, _RANKED).round().long()]
    if len(rows) < 2:
        return None
    unit = F.normalize(rows.float(), dim=1)
    first, second = torch.triu_indices(len(rows), len(rows), offset=1)
    pairs = (unit @ unit.T)[first, second].sort().values  # (N(N-1)/2,)
    return torch.searchsorted(pairs, similarities.contiguous()).double() / len(pairs)


def check_sheet_size(num_queries: int, k: int) -> None:
    """Refuse, before the search, a sheet too large to look at."""
    if num_queries * (1 + k) > MOST_IMAGES:
        raise UserError(
            f"{num_queries:,} queries with {k} hits each are too many for a sheet, which has room for "
            f"{MOST_IMAGES:,} images; ask with fewer, or with a smaller -k"
        )


def write_sheet(path: str | Path, answers: Sequence[Answer], title: str) -> None:
    """Write one HTML page that needs nothing else; a reader never meets half of it.

    >>> rows = torch.eye(3)
    >>> photos = ccl.Collection(rows, ["a.jpg", "b.jpg", "c.jpg"], content=lambda position: None)
    >>> ccl.write_sheet("similar.html", ccl.find_similar(photos, photos, k=2), "Most alike")
    """
    path = Path(path)
    check_target(path, [".html"], "a contact sheet")

    def shown(image: SheetImage) -> tuple[str, Thumbnail | None]:
        return image.name, None if image.content is None else thumbnail(image.content, _SIDE)

    rows = []
    for answer in answers:
        cosines = [f"cosine {similarity:.3f}" for _, similarity in answer.hits]
        about = [(rank_in_words(rank), cosine) for rank, cosine in zip(answer.ranks, cosines, strict=False)]
        about = about or [(cosine, "") for cosine in cosines]
        hits = [(*shown(image), *words) for (image, _), words in zip(answer.hits, about, strict=True)]
        rows.append((shown(answer.query), hits))
    is_ranked = any(answer.ranks for answer in answers)
    page = render("ccl.continual_encoder", "contact_sheet.html.j2", title=title, rows=rows, is_ranked=is_ranked)
    with replacing(path) as unfinished:
        # A file's name may hold bytes that are not text.
        unfinished.write_text(page, encoding="utf-8", errors="replace")
