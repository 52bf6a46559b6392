"""Numbers of bytes as people write them."""

import pytest

from ccl.section import num_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("7B", 7), ("200 kB", 200_000), ("50MB", 50_000_000), ("1.5 GB", 1_500_000_000), ("2TB", 2 * 10**12)],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert num_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "50", "50 mb", "50KB", "50  MB", "-1MB", "1e3 kB", "0 MB", "0.1B", "50MB ", "٣MB"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size; write a number and one of B, kB, MB, GB, TB"):
        num_bytes(text)
