"""No bit of a sealed file can change unnoticed, and nothing else is taken for one."""

import pytest

from ccl.sealed_json import seal, unseal


def test_every_flipped_bit_is_found() -> None:
    content = seal({"b": [1, 2.5, None], "a": {"x": "ü"}, 3: True})
    assert unseal(content) == {"a": {"x": "ü"}, "b": [1, 2.5, None], "3": True}
    for at in range(len(content)):
        for bit in range(8):
            wrong = bytearray(content)
            wrong[at] ^= 1 << bit
            with pytest.raises(ValueError, match=r"."):
                unseal(bytes(wrong))


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0\xff", b"[]", b"3", b"null", b"{}", b'{"a": 1}', b'{"sha256": 3}', b'{"a": 1, "sha256": {}}'),
        *(b"[" * 100_000, b"1" * 10_000, b'{"sha256": "' + b"0" * 64 + b'", "a": ' + b"9" * 5000 + b"}"),
    ],
)
def test_what_was_not_sealed_is_refused_in_words(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unseal(content)
