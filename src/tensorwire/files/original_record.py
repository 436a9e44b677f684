"""What is kept of an original file to restore it byte for byte, as text for headers and manifests.

An original is its tensors' data, one behind the other, and what stands between: of a safetensors file that is the
header in front, of a torch file the structure of the zip archive, its pickle and its small storages.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import CorruptDataError, LimitExceededError
from .header import MAX_HEADER_NBYTES, Header, checked_length, parse_header

SAFETENSORS, TORCH = "safetensors", "torch"
"""The kinds of originals, as manifests call them."""


class Gap(NamedTuple):
    """Bytes of an original that belong to no tensor, and before which byte of the data of all tensors they stand."""

    position: int
    data: bytes


class Outline(NamedTuple):
    """An original file without the data of its tensors.

    Attributes:
        kind: SAFETENSORS or TORCH.
        header: of a file of safetensors with its tensors, in their order; of SAFETENSORS its own.
        gaps: in order.
    """

    kind: str
    header: Header
    gaps: tuple[Gap, ...]

    @property
    def nbytes(self) -> int:
        """The size of the original file."""
        return self.header.data_nbytes + sum(len(gap.data) for gap in self.gaps)

    @property
    def content(self) -> bytes:
        """What a record keeps of it."""
        if self.kind == SAFETENSORS:
            return self.header.raw
        sizes = struct.pack(f"<{len(self.gaps)}I", *(len(gap.data) for gap in self.gaps))
        return b"".join([self.header.prefix, sizes, *(gap.data for gap in self.gaps)])


def safetensors_outline(header: Header) -> Outline:
    """The outline of a safetensors file."""
    return Outline(SAFETENSORS, header, (Gap(0, header.prefix),))


def torch_outline(header: Header, between: Sequence[bytes]) -> Outline:
    """The outline of a torch file: `between` stands before each of its tensors and behind the last one."""
    positions = [*(entry.start for entry in header.entries), header.data_nbytes]
    return Outline(TORCH, header, tuple(map(Gap, positions, between)))


class Record(NamedTuple):
    """What restores an original file: its kind, what is kept of it, and the SHA-256 of the whole, in hexadecimal
    digits."""

    kind: str
    content: bytes
    sha256: str

    def outline(self) -> Outline:
        """Raises CorruptDataError if the content is damaged."""
        if self.kind == SAFETENSORS:
            return safetensors_outline(parse_header(self.content))
        length = checked_length(self.content[:8], len(self.content))
        header = parse_header(self.content[8 : 8 + length])
        view, count = memoryview(self.content)[8 + length :], len(header.entries) + 1
        if len(view) < 4 * count:
            raise CorruptDataError("expected a size for each gap in the record of a torch file")
        sizes, view = struct.unpack_from(f"<{count}I", view), view[4 * count :]
        if sum(sizes) != len(view):
            raise CorruptDataError(
                f"expected gaps of {sum(sizes)} bytes in the record of a torch file, got {len(view)}"
            )
        between = []
        for size in sizes:
            between.append(bytes(view[:size]))
            view = view[size:]
        return torch_outline(header, between)


class Spliced:
    """Passes on the data of tensors as it comes, and what stands between where it belongs."""

    def __init__(self, gaps: Sequence[Gap], take: Callable[[memoryview], object]) -> None:
        """What stands in front is passed on at once."""
        self._gaps = list(reversed(gaps))
        self._take = take
        self._position = 0
        self(memoryview(b""))

    def __call__(self, data: memoryview) -> None:
        """Pass on the next bytes of data."""
        end = self._position + len(data)
        while self._gaps and self._gaps[-1].position <= end:
            gap = self._gaps.pop()
            count = gap.position - self._position
            self._take(data[:count])
            self._take(memoryview(gap.data))
            data, self._position = data[count:], gap.position
        self._take(data)
        self._position = end


def pack(data: bytes) -> str:
    """Bytes as text in a record: zlib, then base64."""
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def unpack(text: str) -> bytes:
    """Inverts `pack`; the result is at most 100 MB."""
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text.encode("ascii"), validate=True), MAX_HEADER_NBYTES + 1)
    except (ValueError, zlib.error):
        raise CorruptDataError("expected a record in base64 of zlib data") from None
    if len(data) > MAX_HEADER_NBYTES:
        raise LimitExceededError(f"expected a record of at most {MAX_HEADER_NBYTES} bytes")
    if not inflate.eof or inflate.unused_data:
        raise CorruptDataError("expected a record that ends with its data")
    return data
