"""Numbers of bytes as people write them."""

import re

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def num_bytes(text: str) -> int:
    """The bytes of "200 kB", "50MB" or "1.5 GB", units of a thousand each; raises ValueError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?B)", text, re.ASCII)
    count = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if count < 1:
        raise ValueError(
            f"{text!r} is not a size; write a number and one of {', '.join(_UNITS)}, as in 200 kB or 1.5GB"
        )
    return count
