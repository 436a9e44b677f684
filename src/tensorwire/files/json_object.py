"""JSON objects: read strictly, and written for people or for a hash."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..errors import CorruptDataError, LimitExceededError


def check_nbytes(nbytes: int, most: int, what: str, advice: str | None = None) -> None:
    """Raise LimitExceededError for more JSON than is parsed at once: its objects take up to forty times as much."""
    if nbytes > most:
        raise LimitExceededError(f"expected {what} of at most {most:,} bytes, got {nbytes:,}", advice=advice)


def load(data: bytes, repeated: list[str] | None = None) -> dict[str, Any]:
    """Parse a JSON object; CorruptDataError for anything else.

    Args:
        repeated: gets the keys that stand twice in an object, of which the last one counts, as in other parsers. By
            default they are an error too.
    """

    def members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            if repeated is None:
                raise ValueError("expected unique keys in an object, got one twice")
            repeated.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return found

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"expected JSON, got an error: {error!s:.200}") from None
    if not isinstance(value, dict):
        raise CorruptDataError(f"expected a JSON object, got {type(value).__name__}")
    return value


def dump(value: dict[str, Any]) -> bytes:
    """A JSON object as the text of a file."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def canonical(value: object, *, sort_keys: bool = False) -> bytes:
    """JSON without spaces and in ASCII, as it is hashed."""
    return json.dumps(value, sort_keys=sort_keys, separators=(",", ":")).encode()


def seal(body: dict[str, Any], *, sort_keys: bool = False) -> str:
    """The SHA-256 of an object, for a key of its own; CorruptDataError for one that is nested too deep."""
    try:
        return hashlib.sha256(canonical(body, sort_keys=sort_keys)).hexdigest()
    except RecursionError:
        raise CorruptDataError("expected a JSON object, got one that is nested too deep") from None
