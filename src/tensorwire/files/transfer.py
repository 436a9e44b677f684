"""One safetensors file to another: compress, restore, transcode, or only check."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CorruptDataError
from ..storage.pipeline import WindowStream, Worker
from ..storage.streams import SpoolFile
from .original_record import Record, pack
from .original_view import OriginalReader
from .reader import BASE_HASH_KEY, ORIGINAL_HEADER_KEY, ORIGINAL_SHA256_KEY, StoredFile
from .writer import CompressedWriter, check_names, match_bases, write_with_bases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..codec import Profile
    from ..storage.local import InputFile, OutputFile
    from ..storage.pipeline import Window
    from .base import Base, BaseTensor
    from .stream import KeptTensors
    from .writer import Written

    Advance = Callable[[int], None]


class Transferred(NamedTuple):
    """What a transfer did.

    Attributes:
        record: of the original.
        original_nbytes: size of the original.
        nbytes, data_nbytes: size of the new file, and of its data.
        compressed: which tensors are frames on the compressed side.
        relative: which of them are relative to a base.
        notice: what the user has to know of the bases.
    """

    record: Record
    original_nbytes: int
    nbytes: int
    data_nbytes: int
    compressed: frozenset[str]
    relative: frozenset[str]
    notice: str | None = None


def compress_file(
    stored: StoredFile,
    record: Record | None,
    file: OutputFile,
    *,
    profile: Profile,
    threads: int | None,
    advance: Advance,
    keep_record: bool,
    kept: KeptTensors | None = None,
    base: Base | None = None,
    path: str = "",
) -> Transferred:
    """Write `stored` compressed; it is an original, or compressed itself and `record` tells of its original.

    Somebody may write to the file meanwhile. What is written is then what was read once, words of different moments;
    the record is that of a file with this content.

    Args:
        keep_record: put the record into the file, and the hash of the base; otherwise somebody else keeps them.
        base: what tensors are relative to that have one of the same dtype and size there: of the same name, or of the
            same content. Not for a stream.
        path: relative path of the file, by which tensors of one name are told apart.
        kept: where tensors are kept that must be read again, if `stored` is a stream.
        advance: called with the number of uncompressed bytes that were done since the last call.

    Raises:
        OSError: the file got longer or shorter.
    """
    reader = OriginalReader(stored, record, threads)
    entries = reader.header.entries
    check_names(entries)
    bases = match_bases(base, entries, path, threads, reader.content_hash) if base is not None else {}
    sha256 = ""

    def write_once(reader: OriginalReader, bases: Mapping[int, BaseTensor]) -> Written:
        nonlocal sha256
        metadata = dict(stored.metadata)
        if keep_record:
            # SHA-256 is known only at the end; its place is taken now.
            metadata[ORIGINAL_HEADER_KEY] = pack(reader.header.raw)
            metadata[ORIGINAL_SHA256_KEY] = "0" * 64
            if bases:
                metadata[BASE_HASH_KEY] = "0" * 32
        digest = hashlib.sha256(reader.header.prefix)
        with CompressedWriter(
            file, entries, metadata, profile=profile, threads=threads, base=base, bases=bases
        ) as writer:

            def consume(window: Window) -> None:
                for chunk, data in window.split():
                    writer.put(chunk.tensor, chunk.start, data)
                    if kept is not None:
                        kept.put(chunk, data, again=writer.is_plain(chunk.tensor))

            _stream(reader, digest, consume, advance)
            sha256 = _checked_digest(stored, record, digest.hexdigest())
            if keep_record:
                writer.set_metadata(ORIGINAL_SHA256_KEY, sha256)
                if base is not None and bases:
                    writer.set_metadata(BASE_HASH_KEY, base.tensors_hash(threads))
            return writer.finish(reader.reread if kept is None else kept.read)

    def write(bases: Mapping[int, BaseTensor]) -> Written:
        written = write_once(reader, bases)
        if not written.changed:
            return written
        # SHA-256 is that of what was read first. From a copy that nobody else knows the same is read twice.
        with _private_copy(stored) as copy:
            copy.use_base(base, path)
            return write_once(OriginalReader(copy, record, threads), bases)

    written, notice = write_with_bases(bases, entries, write)
    stored.file.check_size()
    original_nbytes = reader.header.data_start + reader.header.data_nbytes
    return Transferred(
        Record(reader.header.raw, sha256),
        original_nbytes,
        written.nbytes,
        written.data_nbytes,
        written.compressed,
        written.relative,
        notice,
    )


@contextmanager
def _private_copy(stored: StoredFile) -> Iterator[StoredFile]:
    """The same file, read once, in a temporary one without a name."""
    with closing(SpoolFile()) as spool:
        copy_file(stored.file, spool, advance=lambda _: None)
        with StoredFile(spool.location) as copy:
            copy.path = stored.path
            yield copy


def restore_file(
    stored: StoredFile,
    record: Record | None,
    file: OutputFile | None,
    *,
    threads: int | None,
    advance: Advance,
) -> Transferred:
    """Write the original of `stored`, or with `file` None only check that it could be."""
    reader = OriginalReader(stored, record, threads)
    digest = hashlib.sha256(reader.header.prefix)
    position = reader.header.data_start
    with ExitStack() as stack:
        worker = stack.enter_context(Worker("write")) if file is not None else None
        if file is not None:
            file.write(0, reader.header.prefix)

        def consume(window: Window) -> None:
            nonlocal position
            if file is not None and worker is not None:
                worker.submit(file.write, position, window.data, done=window.share().release)
            position += len(window.data)

        _stream(reader, digest, consume, advance)
    sha256 = _checked_digest(stored, record, digest.hexdigest())
    stored.file.check_unchanged()
    record = Record(reader.header.raw, sha256)
    compressed = frozenset(tensor.name for tensor in stored.tensors.values() if tensor.compressed)
    relative = frozenset(stored.relative)
    return Transferred(record, position, position, reader.header.data_nbytes, compressed, relative)


def _stream(reader: OriginalReader, digest: hashlib._Hash, consume: Callable[[Window], None], advance: Advance) -> None:
    """Read ahead, hash and consume the content of a file, each on a thread of its own."""
    source = WindowStream(reader.sizes, reader.fill, reader.stored.file.stop, reader.block_nbytes)
    with Worker("hash") as hashing, source as windows:
        for window in windows:
            try:
                hashing.submit(digest.update, window.data, done=window.share().release)
                consume(window)
                nbytes = len(window.data)
            finally:
                window.release()
            advance(nbytes)


def _checked_digest(stored: StoredFile, record: Record | None, found: str) -> str:
    if record is not None and record.sha256 != found:
        raise CorruptDataError(f"expected an original with SHA-256 {record.sha256}, got {found}", file=stored.path)
    return found


def copy_file(source: InputFile, file: OutputFile | None, *, advance: Advance) -> str:
    """Copy a file as it is, or with `file` None only read it; return its SHA-256."""
    digest = hashlib.sha256()
    position = 0
    with ExitStack() as stack:
        worker = stack.enter_context(Worker("write")) if file is not None else None
        hashing = stack.enter_context(Worker("hash"))
        windows = stack.enter_context(
            WindowStream([source.nbytes], lambda chunk, out: source.read_into(chunk.start, out))
        )
        for window in windows:
            try:
                hashing.submit(digest.update, window.data, done=window.share().release)
                if file is not None and worker is not None:
                    worker.submit(file.write, position, window.data, done=window.share().release)
                nbytes = len(window.data)
            finally:
                window.release()
            position += nbytes
            advance(nbytes)
    source.check_size()
    return digest.hexdigest()
