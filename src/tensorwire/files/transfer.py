"""One safetensors file to another: compress, restore, transcode, copy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from ..errors import CorruptDataError
from ..storage.inputs import open_input
from ..storage.pipeline import Worker, read_windows
from ..storage.spool import SpoolFile
from .names import REQUIRED_KEY, kept_metadata
from .original_record import TORCH, Gap, Spliced, pack
from .original_view import OriginalReader
from .reader import BASE_HASH_KEY, ORIGINAL_KEYS, ORIGINAL_SHA256_KEY, StoredFile
from .writer import CompressedWriter, Written, check_names, match_bases, write_with_bases

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..storage.locations import Location
    from ..storage.pipeline import Window
    from ..storage.readable import Readable, Writable
    from .base import BaseTensor
    from .writer import Coding

    Advance = Callable[[int], None]
    Windows = AbstractContextManager[Iterator[Window]]


def compress_file(
    original: OriginalReader,
    file: Writable,
    coding: Coding,
    *,
    keep_record: bool,
    advance: Advance,
) -> Written:
    """Write an original compressed; it may come from a file that is compressed itself.

    Another process may write to the file meanwhile. What is written is then what was read once, a mix of old and new
    values; the SHA-256 is that of a file with this content.

    Args:
        keep_record: put the record into the file, and the hash of the base; otherwise the caller keeps them.
        advance: called with the number of uncompressed bytes that were done since the last call.

    Raises:
        OSError: the file got longer or shorter.
    """
    original.check_labels()
    stored, entries = original.stored, original.header.entries
    stored.expect(stored.tensors.values())
    check_names(entries)
    chosen = match_bases(coding, entries, stored.base_file, original.content_hash)

    def write_once(original: OriginalReader, bases: Mapping[int, BaseTensor]) -> Written:
        metadata = kept_metadata(stored.metadata)
        if original.outline.kind == TORCH:
            metadata[REQUIRED_KEY] = TORCH
        if keep_record:
            # SHA-256 is known only at the end; its place is taken now.
            metadata[ORIGINAL_KEYS[original.outline.kind]] = pack(original.outline.content)
            metadata[ORIGINAL_SHA256_KEY] = "0" * 64
            if bases:
                metadata[BASE_HASH_KEY] = "0" * 32
        digest = hashlib.sha256()
        with CompressedWriter(file, entries, metadata, coding, bases, original.block_nbytes) as writer:

            def consume(window: Window) -> None:
                for chunk, data in window.split():
                    writer.put(chunk.tensor, chunk.start, data)

            _consume(_windows(original), Spliced(original.outline.gaps, digest.update), consume, advance)
            sha256 = _checked_digest(original, digest)
            if keep_record:
                writer.set_metadata(ORIGINAL_SHA256_KEY, sha256)
                if coding.base is not None and bases:
                    writer.set_metadata(BASE_HASH_KEY, coding.base.tensors_hash(coding.threads))
            return writer.finish(original.reread)._replace(sha256=sha256)

    def write(bases: Mapping[int, BaseTensor]) -> Written:
        written = write_once(original, bases)
        if not written.changed:
            return written
        # SHA-256 is that of what was read first. From a private copy the same is read twice.
        with _private_copy(original) as copy:
            return write_once(copy, bases)

    written = write_with_bases(chosen, entries, write)
    stored.file.check_size()
    return written


@contextmanager
def _private_copy(original: OriginalReader) -> Iterator[OriginalReader]:
    """The same original out of a temporary file without a name, which the file was copied to in one read."""
    stored = original.stored
    with closing(SpoolFile()) as spool:
        copy_file(stored.file, spool, advance=lambda _: None)
        with StoredFile(spool.location) as copy:
            copy.path = stored.path
            copy.use_base(stored.base, stored.base_file)
            copy.beside = stored.beside
            yield OriginalReader(copy, original.record, original.threads, original.outline)
            copy.beside = None  # which closes with the file itself


def restore_file(original: OriginalReader, file: Writable, *, advance: Advance) -> Written:
    """Write an original."""
    original.check_labels()
    stored = original.stored
    stored.expect(stored.tensors.values())
    digest = hashlib.sha256()
    _write(_windows(original), original.outline.gaps, digest, file, advance)
    sha256 = _checked_digest(original, digest)
    stored.file.check_unchanged()
    compressed = frozenset(tensor.name for tensor in stored.tensors.values() if tensor.compressed)
    return Written(original.nbytes, original.header.data_nbytes, compressed, frozenset(stored.relative), sha256=sha256)


def check_file(original: OriginalReader, *, advance: Advance) -> None:
    """Decode an original, and write it nowhere.

    Raises:
        CorruptDataError: it is another one than its record says.
    """
    stored, digest = original.stored, hashlib.sha256()
    stored.expect(stored.tensors.values())
    _consume(_windows(original), Spliced(original.outline.gaps, digest.update), lambda _: None, advance)
    _checked_digest(original, digest)


def copy_file(source: Readable, file: Writable, *, advance: Advance) -> str:
    """Copy a file as it is; return its SHA-256."""
    digest = hashlib.sha256()
    _write(_raw_windows(source), (), digest, file, advance)
    source.check_size()
    return digest.hexdigest()


def file_sha256(path: Location, advance: Advance = lambda _: None) -> str:
    """The SHA-256 of a file."""
    with open_input(path) as source:
        return sha256_of(source, advance)


def sha256_of(source: Readable, advance: Advance) -> str:
    """The same of a file that is open."""
    digest = hashlib.sha256()
    _consume(_raw_windows(source), digest.update, lambda _: None, advance)
    source.check_size()
    return digest.hexdigest()


def _raw_windows(source: Readable) -> Windows:
    source.expect([(0, source.nbytes)])
    return read_windows([source.nbytes], lambda chunk, out: source.read_into(chunk.start, out))


def _windows(original: OriginalReader) -> Windows:
    """The content of a file, read ahead."""
    return read_windows(original.sizes, original.fill, original.block_nbytes)


def _write(source: Windows, gaps: Sequence[Gap], digest: hashlib._Hash, file: Writable, advance: Advance) -> None:
    """Write windows one behind the other, and what stands between their data, and hash all of it."""
    position = 0

    def append(data: memoryview) -> None:
        nonlocal position
        file.write(position, data)
        position += len(data)

    output = Spliced(gaps, append)
    with Worker("write") as worker:

        def consume(window: Window) -> None:
            worker.submit(output, window.data, done=window.share().release)

        _consume(source, Spliced(gaps, digest.update), consume, advance)


def _consume(
    source: Windows, hash_data: Callable[[memoryview], object], consume: Callable[[Window], None], advance: Advance
) -> None:
    """Hash and consume windows, each on a thread of its own."""
    with Worker("hash") as hashing, source as windows:
        for window in windows:
            try:
                hashing.submit(hash_data, window.data, done=window.share().release)
                consume(window)
                nbytes = len(window.data)
            finally:
                window.release()
            advance(nbytes)


def _checked_digest(original: OriginalReader, digest: hashlib._Hash) -> str:
    record, found = original.record, digest.hexdigest()
    if record is not None and record.sha256 != found:
        raise CorruptDataError(
            f"expected an original with SHA-256 {record.sha256}, got {found}", file=original.stored.path
        )
    return found
