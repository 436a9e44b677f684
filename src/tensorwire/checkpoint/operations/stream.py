"""One safetensors file that comes from standard input, goes to standard output, or both.

A stream is a binary file object with a descriptor, of which nothing has been read or written. Memory is bounded; what
is needed in another order than it comes in is kept in temporary files without a name, in the directory that TMPDIR
names.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..._ground.destination import Destination
from ..._ground.filesystem import absolute
from ...errors import FormatError, TensorwireError
from ...files.foreign import PREFIX_NBYTES
from ...files.header import checked_length, parse_header
from ...files.original_view import OriginalReader
from ...files.reader import StoredFile
from ...files.torch_file import open_stored
from ...files.transfer import KeptTensors, compress_file, restore_file
from ...files.writer import Coding
from ...storage.local import OutputFile
from ...storage.locations import is_path, locate, on_this_machine, said
from ...storage.progress import Meter
from ...storage.remote import RemotePath
from ...storage.staging import Staging
from ...storage.streams import InputStream, OutputStream, SpoolFile, stream_path
from ..bases import check_another, check_apart, enter, name_of
from ..directory.replaceable import check_same, made_by_us
from ..directory.sources import Sources, check_compressed, check_original
from .converter import report_of_tensors
from .outcome import Outcome

if TYPE_CHECKING:
    from typing import TypeAlias

    from ...codec import Profile
    from ...files.base import Base
    from ...storage.progress import Progress
    from ...storage.readable import Writable
    from ..bases import BasePath
    from ..results import CheckpointReport
    from .converter import Action

    PathOrStream: TypeAlias = str | os.PathLike[str] | IO[bytes]


def convert_stream(
    action: Action,
    src: PathOrStream | RemotePath,
    dst: PathOrStream,
    *,
    profile: Profile | None = None,
    base: BasePath | None = None,
    threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> CheckpointReport:
    """What `compress_checkpoint`, `decompress_checkpoint` or `transcode_checkpoint` does, of one file, with streams.

    Decompressing writes as it reads, as far as the order of the data allows it: a tensor that is stored plain stands
    behind all that are compressed, so what follows it in the original waits in a temporary file. Compressing writes
    when all is read, since a header tells sizes before the data.

    Args:
        src, dst: a path or a stream, one of them at least a stream. What has been written to a stream before an error
            stays written.
        base: a path, or several, newest first. What is compressed with one is first copied to a temporary file, if it
            is a stream.

    Raises:
        As the function for files does; BrokenPipeError: nobody reads `dst` any more.
    """
    started = time.monotonic()
    _check_apart(src, dst)
    with ExitStack() as stack:
        opened = enter(stack, base, profile=profile)
        if opened is not None:
            _check_base_apart(dst, opened)
            if profile is not None and is_path(src):
                check_another(locate(src), opened)
        stored = stack.enter_context(_open(src, again=opened is not None and profile is not None))
        stored.use_base(opened, stored.path.name)
        (check_original if action == "compress" else check_compressed)(stored)
        record = stored.record()
        original = OriginalReader(stored, record, threads)
        # Without a record the size of the original is not known before all has been read.
        nbytes = stored.header.data_nbytes if record is None else original.header.data_nbytes
        meter = Meter(progress, nbytes)
        meter.begin(stored.path.name, nbytes)
        kept = KeptTensors(stack.enter_context(closing(SpoolFile()))) if stored.file.in_order else None
        sources = [] if opened is None else on_this_machine(opened.paths())
        if not is_path(src):
            sources.append(Path(f"/proc/self/fd/{src.fileno()}"))  # a link to what was redirected
        with _result(action, dst, sources, force=force) as file:
            if profile is None:
                done = restore_file(original, file, advance=meter.advance)
            else:
                assert not isinstance(file, OutputStream)
                coding = Coding(profile, threads, opened)
                keep_record = action == "compress" or record is not None
                done = compress_file(original, file, coding, keep_record=keep_record, advance=meter.advance, kept=kept)
        meter.end()
        outcome = Outcome(Sources(()), strict=False)
        outcome.profile = profile or stored.profile
        outcome.exact = action == "compress" or record is not None
        outcome.files.append(report_of_tensors(stored.path.name, original, done))
        outcome.notices += [] if done.notice is None else [done.notice]
        return outcome.report(action, _name(src), _name(dst), name_of(base), started)


@contextmanager
def spooled(stream: IO[bytes]) -> Iterator[Path]:
    """The path of a temporary file with all of a stream, for what reads a file more than once.

    If a stream is longer than its header says, or has none that is valid, it holds as much as shows that.
    """
    with closing(InputStream(stream)) as source, closing(SpoolFile()) as file:
        source.spool(file, PREFIX_NBYTES)
        with suppress(FormatError):  # which the reader of the file will raise too
            length = checked_length(file.read(0, 8), sys.maxsize)
            source.spool(file, 8 + length)
            header = parse_header(file.read(8, length))
            source.spool(file, header.data_start + header.data_nbytes + 1)
        try:
            yield file.location
        except TensorwireError as error:
            if error.file == file.location:
                error.file = source.path
            raise


@contextmanager
def _open(src: PathOrStream | RemotePath, *, again: bool) -> Iterator[StoredFile]:
    """The source; `again` if it may be read more than once."""
    with ExitStack() as stack:
        if is_path(src):
            path = locate(src)
            if path.is_dir():
                raise ValueError(f"{path} is a directory: a stream holds one .safetensors file")
            yield stack.enter_context(open_stored(path))
        elif again:
            stored = stack.enter_context(StoredFile(stack.enter_context(spooled(src))))
            stored.path = stream_path(src)
            yield stored
        else:
            yield stack.enter_context(StoredFile(InputStream(src)))


def _check_apart(src: PathOrStream | RemotePath, dst: PathOrStream) -> None:
    """Raise ValueError for one file that is both: `< FILE` and `>> FILE` name one too."""
    if isinstance(src, RemotePath):
        return
    with suppress(FileNotFoundError):
        a, b = _status(src), _status(dst)
        if stat.S_ISREG(a.st_mode) and os.path.samestat(a, b):
            raise ValueError("source and destination are the same file; name another destination")


def _check_base_apart(dst: PathOrStream, base: Base) -> None:
    """Raise ValueError for a destination that is a file of the base: `<> FILE` and `>> FILE` do not empty it."""
    if isinstance(dst, (str, os.PathLike)):
        check_apart(absolute(dst), base)
    elif any(os.path.samestat(os.fstat(dst.fileno()), path.stat()) for path in on_this_machine(base.paths())):
        raise ValueError("the destination is a file of the base; name another destination")


def _status(place: PathOrStream) -> os.stat_result:
    return absolute(place).stat() if isinstance(place, (str, os.PathLike)) else os.fstat(place.fileno())


@contextmanager
def _result(
    action: Action, dst: PathOrStream, sources: Sequence[Path], *, force: bool
) -> Iterator[Writable | OutputStream]:
    """What a result, made from `sources`, is written to; after it is whole it is at `dst`."""
    if isinstance(dst, (str, os.PathLike)):
        owned = partial(_of_stream, action)
        destination = Destination(absolute(dst), force=force, source_files=sources, owned=owned)
        with (
            Staging(destination, {"action": "stream"}) as work,
            OutputFile(work.result, work.access_of_existing()) as file,
        ):
            yield file
            file.sync()
            work.commit(None)
        return
    with closing(OutputStream(dst)) as output, closing(SpoolFile()) as spool:
        yield output if action == "decompress" else spool  # the one that is written from begin to end
        spool.copy_to(output, spool.nbytes)


def _of_stream(action: Action, path: Path) -> frozenset[str]:
    """What gives way to a file that is made from a stream, as `Destination` asks for it."""
    if action != "compress":
        check_same(path, None)
    return frozenset() if action == "decompress" else made_by_us(path)


def _name(place: PathOrStream | RemotePath) -> str:
    return said(place) if is_path(place) else "-"
