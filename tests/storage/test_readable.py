"""Files are read from and written to whatever has the methods of storage.readable: here memory, no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorwire import compress_checkpoint
from tensorwire.errors import TruncatedDataError
from tensorwire.files.original_view import OriginalReader
from tensorwire.files.reader import StoredFile
from tensorwire.files.transfer import compress_file, restore_file
from tensorwire.files.writer import Coding
from tests.support.checkpoint_models import container, layer


class Memory:
    """A Readable and a Writable."""

    def __init__(self, data: bytes = b"") -> None:
        self.path = Path("an object")
        self.data = bytearray(data)
        self.nbytes = len(data)
        self.is_closed = False

    @property
    def identity(self) -> list[int]:
        return [len(self.data)]

    def read_into(self, offset: int, out: memoryview) -> None:
        if offset + len(out) > len(self.data):
            raise TruncatedDataError("expected more", file=self.path)
        out[:] = self.data[offset : offset + len(out)]

    def read(self, offset: int, nbytes: int) -> bytes:
        return bytes(self.data[offset : offset + nbytes])

    def read_ahead(self, offset: int, nbytes: int) -> None: ...
    def expect(self, ranges: object) -> None: ...
    def check_size(self) -> None: ...
    def check_unchanged(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    def write(self, offset: int, data: memoryview | bytes) -> None:
        self.data.extend(bytes(max(0, offset + len(data) - len(self.data))))
        self.data[offset : offset + len(data)] = data

    def truncate(self, nbytes: int) -> None:
        del self.data[nbytes:]


def advance(nbytes: int) -> None:
    pass


@pytest.fixture
def original() -> bytes:
    return container(layer(0, 0, 256), {"format": "pt"})


def test_a_file_in_memory_is_compressed_and_restored(tmp_path: Path, original: bytes) -> None:
    (tmp_path / "plain").write_bytes(original)
    compress_checkpoint(tmp_path / "plain", tmp_path / "packed")
    source = Memory(original)
    packed = Memory()
    with StoredFile(source) as stored:
        compress_file(OriginalReader(stored, None, 1), packed, Coding("fast", 1), keep_record=True, advance=advance)
    assert packed.data == (tmp_path / "packed").read_bytes()
    restored = Memory()
    with StoredFile(Memory(bytes(packed.data))) as stored:
        restore_file(OriginalReader(stored, stored.record(), 1), restored, advance=advance)
    assert restored.data == original


def test_what_is_read_is_closed_with_its_file(original: bytes) -> None:
    source = Memory(original)
    with StoredFile(source) as stored:
        assert stored.file is source
        assert not source.is_closed
    assert source.is_closed
    damaged = Memory(b"no safetensors file")
    with pytest.raises(ValueError, match="expected"):
        StoredFile(damaged)
    assert damaged.is_closed
