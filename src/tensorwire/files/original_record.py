"""What is kept of an original file to restore it byte for byte, as text for headers and manifests."""

from __future__ import annotations

import base64
import zlib
from typing import NamedTuple

from ..errors import CorruptDataError, LimitExceededError
from .header import MAX_HEADER_NBYTES


class Record(NamedTuple):
    """What restores an original file: its header (the JSON) and the SHA-256 of the whole, in hexadecimal digits."""

    header: bytes
    sha256: str


def pack(data: bytes) -> str:
    """Bytes as text in a record: zlib, then base64."""
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def unpack(text: str) -> bytes:
    """Inverts `pack`; the result is at most 100 MB."""
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text.encode("ascii"), validate=True), MAX_HEADER_NBYTES)
    except (ValueError, zlib.error):
        raise CorruptDataError("expected a record in base64 of zlib data") from None
    if inflate.unconsumed_tail:
        raise LimitExceededError(f"expected a record of at most {MAX_HEADER_NBYTES} bytes")
    if not inflate.eof or inflate.unused_data:
        raise CorruptDataError("expected a record that ends with its data")
    return data
