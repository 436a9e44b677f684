"""How a changed tensor is stored in a version of slime, miles and SGLang, and the checksums of its new content.

docs/sync-versions.md has the layout.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Literal, get_args

from .._ground.allocation import new_buffer
from .._ground.packages import require
from ..errors import BaseMismatchError, CorruptDataError, LimitExceededError, TruncatedDataError

if TYPE_CHECKING:
    import numpy

    Bytes = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]

Encoding = Literal["xor", "overwrite"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)
COMPRESSION = "zstd"
CHECKSUMS = ("xxh3-128", "blake3", "adler32")

_LEVEL = 1
_MAX_OVERWRITE_NBYTES = 2**32 - 1
"""Both the positions and their count have 32 bits."""

_NEEDS = "versions of slime, miles and SGLang need"


def require_zstandard() -> None:
    """ImportError without the package that differences are compressed with."""
    require("zstandard", (0, 23), f"{_NEEDS} zstandard")


def require_checksum(name: str) -> None:
    """ImportError without the package that a checksum needs; adler32 needs none."""
    if name != "adler32":
        package, least = {"xxh3-128": ("xxhash", (3, 4)), "blake3": ("blake3", (0, 3))}[name]
        require(package, least, f"{_NEEDS} {package}")


def available_checksum() -> str:
    """The checksum of what is written: the default of slime, or without its package the one that needs none."""
    try:
        require_checksum("xxh3-128")
    except ImportError:
        return "adler32"
    return "xxh3-128"


def checksum(name: str, data: memoryview) -> str:
    """The checksum of a tensor's bytes, in hexadecimal digits."""
    if name == "xxh3-128":
        import xxhash

        return str(xxhash.xxh3_128_hexdigest(data))
    if name == "blake3":
        import blake3

        return str(blake3.blake3(data).hexdigest())
    return f"{zlib.adler32(data):08x}"


def check_size(encoding: Encoding, nbytes: int) -> None:
    """Raise LimitExceededError for a tensor that an encoding cannot hold."""
    if encoding == "overwrite" and nbytes > _MAX_OVERWRITE_NBYTES:
        raise LimitExceededError(
            f"expected a tensor of less than 4 GiB, whose positions fit 32 bits, got {nbytes} bytes",
            advice='write the version with encoding="xor"',
        )


def encode(encoding: Encoding, new: memoryview, old: memoryview) -> bytes | None:
    """What makes the new bytes of a tensor from the old ones, as many; None if they are the same."""
    import numpy as np
    import zstandard

    values, before = _array(new), _array(old)
    changed = values != before
    if not changed.any():
        return None
    if encoding == "xor":
        differences = values ^ before
    else:
        positions = np.flatnonzero(changed).astype("<u4")
        count = np.array([positions.size], "<u4")
        differences = np.concatenate([count.view(np.uint8), positions.view(np.uint8), values[positions]])
    return bytes(zstandard.ZstdCompressor(level=_LEVEL).compress(differences.data))


def decode(encoding: str, differences: memoryview, old: memoryview) -> memoryview:
    """The new bytes of a tensor.

    Memory is taken for as many bytes as the old ones allow, even if the differences claim more.

    Raises:
        BaseMismatchError: the differences do not fit so many old bytes.
        FormatError: they are damaged.
    """
    import zstandard

    try:
        claimed = zstandard.frame_content_size(differences)
        if encoding == "xor" and claimed not in (-1, len(old)):  # a sender need not say it
            raise BaseMismatchError(f"expected a base of {claimed} bytes, got {len(old)}")
        reader = zstandard.ZstdDecompressor().stream_reader(differences)
        new = _apply_xor(reader, old) if encoding == "xor" else _apply_overwrite(reader, old)
        if reader.read(1):
            raise CorruptDataError("expected the end of the differences, got more of them")
    except zstandard.ZstdError as error:
        raise CorruptDataError(f"expected differences that zstd has compressed, got an error: {error}") from None
    return new


def _apply_xor(reader: Any, old: memoryview) -> memoryview:
    new = _take(reader, len(old))
    values = _array(new)
    values ^= _array(old)
    return new


def _apply_overwrite(reader: Any, old: memoryview) -> memoryview:
    count = int.from_bytes(_take(reader, 4), "little")
    if count > len(old):
        raise BaseMismatchError(f"expected a base of at least {count} bytes, as many as change, got {len(old)}")
    positions = _array(_take(reader, 4 * count)).view("<u4")
    values = _array(_take(reader, count))
    if count and (last := int(positions.max())) >= len(old):
        raise BaseMismatchError(f"expected a base of more than {last} bytes, the last position, got {len(old)}")
    new = new_buffer(len(old))
    new[:] = old
    _array(new)[positions] = values
    return new


def _take(reader: Any, nbytes: int) -> memoryview:
    """The next bytes of a decompressor."""
    data, done = new_buffer(nbytes), 0
    while done < nbytes:
        count = reader.readinto(data[done:])
        if not count:
            raise TruncatedDataError(f"expected {nbytes} bytes of differences, got {done}")
        done += count
    return data


def _array(data: memoryview) -> Bytes:
    import numpy as np

    array: Bytes = np.ndarray((len(data),), np.uint8, data)
    return array
