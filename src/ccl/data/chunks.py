"""Items that come one after the other, gathered in chunks."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from ccl.errors import UserError

Item = TypeVar("Item")


def chunked(items: Iterable[Item], size: int, minimum: int = 1) -> Iterator[list[Item]]:
    """Lists of `size` items in their order; the last may be shorter, and one below `minimum` joins the one before it.

    No more is read than the next list needs: `size` items, and `minimum` beyond where that is above 1.
    """
    if size < 1:
        raise UserError(f"a chunk can't have {size} items; nearest valid value: 1")
    if not 1 <= minimum <= size:
        nearest = min(max(minimum, 1), size)
        raise UserError(f"the minimum of chunks of {size} can't be {minimum}; nearest valid value: {nearest}")
    return _chunks(items, size, minimum if minimum > 1 else 0)


def _chunks(items: Iterable[Item], size: int, ahead: int) -> Iterator[list[Item]]:
    waiting: list[Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size + ahead:  # what is left can now stand alone
            yield waiting[:size]
            del waiting[:size]
    if waiting:
        yield waiting
