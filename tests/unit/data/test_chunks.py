"""Chunks of whatever comes: nothing lost, nothing read too early."""

from collections.abc import Iterator
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccl.data import chunked
from ccl.errors import UserError


@given(num_items=st.integers(0, 60), size=st.integers(1, 12), data=st.data())
def test_every_item_once_in_its_order(num_items: int, size: int, data: st.DataObject) -> None:
    minimum = data.draw(st.integers(1, size))
    chunks = list(chunked(iter(range(num_items)), size, minimum))
    assert [item for chunk in chunks for item in chunk] == list(range(num_items))
    assert all(len(chunk) == size for chunk in chunks[:-1])
    if len(chunks) > 1:
        assert minimum <= len(chunks[-1]) < size + minimum
    elif chunks:
        assert len(chunks[0]) == num_items


@pytest.mark.parametrize(
    ("num_items", "minimum", "sizes"),
    [
        (9, 1, [4, 4, 1]),
        (9, 2, [4, 5]),
        (10, 2, [4, 4, 2]),
        (8, 4, [4, 4]),
        (3, 4, [3]),  # nothing before it to join
        (7, 4, [7]),
        (0, 1, []),
    ],
)
def test_a_last_chunk_below_the_minimum_joins_the_one_before(num_items: int, minimum: int, sizes: list[int]) -> None:
    assert [len(chunk) for chunk in chunked("x" * num_items, 4, minimum)] == sizes


@pytest.mark.parametrize(("minimum", "read"), [(1, 3), (2, 5), (3, 6)])
def test_no_more_is_read_than_the_next_chunk_needs(minimum: int, read: int) -> None:
    taken = []

    def endless() -> Iterator[int]:
        for number in count():
            taken.append(number)
            yield number

    chunks = chunked(endless(), 3, minimum)
    assert taken == []
    assert next(chunks) == [0, 1, 2]
    assert len(taken) == read
    assert list(islice(chunks, 2)) == [[3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize(("size", "minimum", "nearest"), [(0, 1, 1), (-3, 1, 1), (4, 5, 4), (4, 0, 1)])
def test_impossible_sizes_are_refused_at_once(size: int, minimum: int, nearest: int) -> None:
    with pytest.raises(UserError, match=f"nearest valid value: {nearest}$"):
        chunked([1], size, minimum)
