"""A safetensors file that comes as a stream: read in order of its data, and kept where another order is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..codec import FrameReader
from .reader import StoredFile

if TYPE_CHECKING:
    from ..storage.pipeline import Chunk
    from ..storage.streams import InputStream, SpoolFile


class StoredStream(StoredFile):
    """A `StoredFile` that reads a stream; of a tensor each byte can be read once, in order; `forget` it then."""

    _kept = b""
    _kept_start = 0
    _header_guess = FrameReader.MIN_HEADER_NBYTES  # not a byte of the blocks

    def __init__(self, stream: InputStream) -> None:
        self._open(stream)
        stream.nbytes = self.header.data_start + self.header.data_nbytes

    def _data_nbytes(self, header_nbytes: int) -> int | None:
        return None

    def _read_blocks(self, frame: FrameReader, position: int, out: memoryview) -> None:
        """A block that two reads need comes once, so the bytes of the last one are kept."""
        skipped = position - self._kept_start
        num_kept = min(len(self._kept) - skipped, len(out)) if 0 <= skipped < len(self._kept) else 0
        out[:num_kept] = self._kept[skipped : skipped + num_kept]
        if num_kept < len(out):
            self.file.read_into(position + num_kept, out[num_kept:])
            self._kept = bytes(out[-frame.block_nbytes :])
            self._kept_start = position + len(out) - len(self._kept)


class KeptTensors:
    """Tensors of a stream that will be read again, and for as long as it is not known whether it will be, the last."""

    def __init__(self, file: SpoolFile) -> None:
        self._file = file
        self._places: dict[int, int] = {}
        self._end = 0

    def put(self, chunk: Chunk, data: memoryview, *, again: bool) -> None:
        """Add a chunk; `again` with the last one of a tensor says whether to keep it."""
        self._file.write(self._end + chunk.start, data)
        if again:
            self._places[chunk.tensor] = self._end
            self._end += chunk.stop

    def read(self, index: int, start: int, out: memoryview) -> None:
        """Put content of tensor `index` from byte `start` on into `out`."""
        self._file.read_into(self._places[index] + start, out)
