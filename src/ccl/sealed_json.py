"""JSON that carries its own SHA-256: a file of which no bit can change unnoticed."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_SEAL = "sha256"


def seal(body: Mapping[str, Any]) -> bytes:
    """A mapping as JSON with the SHA-256 of all else in it."""
    plain = json.loads(json.dumps(dict(body)))  # number keys become the strings a reader finds, and sort as they do
    return _canonical({**plain, _SEAL: hashlib.sha256(_canonical(plain)).hexdigest()})


def unseal(content: bytes) -> dict[str, Any]:
    """What was sealed; raises ValueError in words for anything else."""
    try:
        body = json.loads(content)
        if not isinstance(body, dict) or _SEAL not in body:
            raise ValueError("it is not JSON with a SHA-256 of its own")
        # Every byte counts, not only the meaning: 1e5 and 1E5 differ by a flipped bit.
        is_itself = content == _canonical(body)
        if body.pop(_SEAL) != hashlib.sha256(_canonical(body)).hexdigest() or not is_itself:
            raise ValueError("its SHA-256 is not its own")
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"not JSON: {type(error).__name__} {str(error)[:160]!r}") from error
    return body


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, indent=2, sort_keys=True).encode("ascii") + b"\n"
