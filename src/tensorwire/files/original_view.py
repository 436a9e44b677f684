"""A stored file as the original that it stands for: what is streamed to compress, restore, transcode and verify."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._ground.allocation import new_buffer
from ..codec import ContentHasher, content_hash
from ..errors import CorruptDataError, ErrorContext, FormatError
from ..storage.pipeline import WINDOW_NBYTES
from .header import Header, build_header, packed
from .names import shown
from .original_record import safetensors_outline
from .torch_file import TorchFile

if TYPE_CHECKING:
    from ..storage.pipeline import Chunk
    from .original_record import Outline, Record
    from .reader import StoredFile, StoredTensor


class OriginalReader:
    """The tensors of a stored file in the order of the original file, to be streamed: see `read_windows`.

    Attributes:
        stored, record, threads: as given.
        outline: of the original file if a record of it is known, else of a plain file with the same tensors.
        header: that of the outline.
        sizes: of the tensors.
    """

    def __init__(
        self, stored: StoredFile, record: Record | None, threads: int | None, outline: Outline | None = None
    ) -> None:
        """`outline`: that of a copy, which does not know it itself. Raises CorruptDataError if the record does not fit
        the tensors."""
        self.stored = stored
        self.record = record
        self.threads = threads
        self._scratch = new_buffer(0)
        self._hasher: ContentHasher | None = None
        self._damaged: dict[int, FormatError] = {}
        with ErrorContext(file=stored.path):
            if record is not None:
                try:
                    self.outline = record.outline()
                except FormatError as error:
                    error.byte = None  # it counts within the record, which has no place of its own in the file
                    raise
                odd = {entry.name for entry in self.outline.header.entries} ^ stored.tensors.keys()
                if odd:
                    text = f"expected the tensors of the original header, {shown(min(odd))} is only on one side"
                    raise CorruptDataError(text)
            elif outline is not None:
                self.outline = outline
            elif isinstance(stored.file, TorchFile):
                self.outline = stored.file.outline
            else:
                self.outline = safetensors_outline(plain_header(stored) if stored.compressed else stored.header)
        self.header = self.outline.header
        self.sizes = [entry.nbytes for entry in self.header.entries]

    @property
    def nbytes(self) -> int:
        """The size of the original file."""
        return self.outline.nbytes

    def check_labels(self) -> None:
        """Raise UnsupportedTensorError if the label of a frame contradicts it: no safetensors file has such a tensor. A
        record of the original, whose header was checked, proves that there is none."""
        if self.record is None:
            for tensor in self.stored.tensors.values():
                self.stored.check_label(tensor)

    def block_nbytes(self, index: int) -> int:
        """What chunks of a tensor are best multiples of, so that no block is decoded twice."""
        tensor = self.stored.tensors[self.header.entries[index].name]
        if not tensor.compressed:
            return 1
        try:
            return self.stored.frame(tensor).block_nbytes
        except FormatError as error:  # `fill` raises it, in its turn
            self._damaged[index] = error
            return 1

    def fill(self, chunk: Chunk, out: memoryview) -> None:
        """Put the bytes of a chunk into `out`. Chunks of a tensor must come in order."""
        entry = self.header.entries[chunk.tensor]
        tensor = self.stored.tensors[entry.name]
        with ErrorContext(file=self.stored.path, tensor=entry.name):
            if chunk.tensor in self._damaged:
                raise self._damaged[chunk.tensor]
            if chunk.start == 0:
                self.check_layout(chunk.tensor)
                if tensor.compressed:
                    self._reserve(tensor)
            self.stored.read(tensor, chunk.start, out, threads=self.threads, scratch=self._scratch)
            expected = self.stored.recorded_hash(tensor)
            if expected is not None:
                if chunk.start == 0 or self._hasher is None:
                    self._hasher = ContentHasher(threads=self.threads)
                self._hasher.update(out)
                if chunk.stop == entry.nbytes:
                    self.stored.check_hash(tensor, expected, self._hasher.hexdigest())
            if chunk.stop == entry.nbytes:
                self.stored.forget(tensor)

    def check_layout(self, index: int) -> None:
        """Raise CorruptDataError if a tensor is not the one that the original has in its place."""
        entry = self.header.entries[index]
        with ErrorContext(file=self.stored.path, tensor=entry.name):
            dtype, shape, nbytes = self.stored.layout(entry.name)
            if (dtype, shape, nbytes) != (entry.dtype, entry.shape, entry.nbytes):
                raise CorruptDataError(
                    f"expected {entry.dtype} {entry.shape} of {entry.nbytes} bytes, got {dtype} {shape} of {nbytes}"
                )

    def reread(self, index: int, start: int, out: memoryview) -> None:
        """Put content of tensor `index` from byte `start` on into `out`, again."""
        tensor = self.stored.tensors[self.header.entries[index].name]
        self.stored.read(tensor, start, out, threads=self.threads)

    def check_plain(self, index: int, content: memoryview) -> None:
        """Raise CorruptDataError if this is not the content of a tensor that is not compressed."""
        tensor = self.stored.tensors[self.header.entries[index].name]
        if not tensor.compressed and tensor.content_hash is not None:
            self.stored.check_hash(tensor, tensor.content_hash, content_hash(content, threads=self.threads))

    def content_hash(self, index: int) -> str:
        """The content hash of a tensor."""
        return self.stored.hash_content(self.stored.tensors[self.header.entries[index].name], self.threads)

    def _reserve(self, tensor: StoredTensor) -> None:
        frame = self.stored.frame(tensor)
        nbytes = min(frame.info.data_nbytes, WINDOW_NBYTES + (WINDOW_NBYTES >> 4))
        if nbytes > len(self._scratch):
            self._scratch = new_buffer(nbytes)


def plain_header(stored: StoredFile) -> Header:
    """The header of a plain file with the tensors of `stored`: widest dtypes first, then by name."""
    return build_header(stored.metadata, packed((name, *stored.layout(name)) for name in sorted(stored.tensors)))
