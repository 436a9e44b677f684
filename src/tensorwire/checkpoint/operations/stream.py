"""One safetensors file that comes from standard input, goes to standard output, or both.

What comes is put into a temporary file, the function for files runs, and what goes is made in a temporary file. So a
stream gives what a file gives. A stream is a binary file object with a descriptor, of which nothing has been read or
written.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

from ..._ground.destination import Destination
from ..._ground.filesystem import absolute
from ...errors import FormatError, TensorwireError
from ...files.foreign import PREFIX_NBYTES, TORCH_FILE, recognise
from ...files.header import checked_length, parse_header
from ...storage.access import access_of, give_access
from ...storage.local import write_at
from ...storage.locations import is_path, locate, on_this_machine, said
from ...storage.remote import is_url
from ...storage.staging import partial_path
from ..directory.shards import tensor_files

if TYPE_CHECKING:
    from typing import TypeAlias

    from ...storage.remote import RemotePath
    from ..bases import BasePath
    from ..results import CheckpointReport

    PathOrStream: TypeAlias = str | os.PathLike[str] | RemotePath | IO[bytes]

_CHUNK_NBYTES = 1 << 20


def convert_stream(
    operation: Callable[..., CheckpointReport], src: PathOrStream, dst: PathOrStream, **settings: Any
) -> CheckpointReport:
    """What `operation`, one of the functions of conversion.py, does of one file, with streams.

    Args:
        src, dst: a path or a stream. What has been written to a stream before an error stays written.
        settings: what `operation` takes by keyword.

    Raises:
        As `operation` does; BrokenPipeError: nothing reads `dst` any more.
    """
    _check_apart(src, dst)
    with ExitStack() as stack:
        if is_path(dst):
            target: Any = dst
        else:
            if is_path(src) and locate(src).is_dir():
                raise ValueError(f"{said(src)} is a directory: a stream holds one .safetensors file")
            _check_base_apart(dst, settings.get("base"))
            target = stack.enter_context(_temporary_file("stdout"))
        source = src if is_path(src) else stack.enter_context(received(src, like=dst if is_path(dst) else None))
        report = operation(source, target, **settings)
        if not is_path(dst):
            _send(target, dst)
    return replace(report, src=_name(src), dst=_name(dst))


@contextmanager
def received(stream: IO[bytes], like: PathOrStream | None = None) -> Iterator[Path]:
    """The path of a temporary file with all of a stream. Errors call it stdin.

    If a stream is longer than its header says, or has none that is valid, it holds as much as shows that. It has the
    permissions of the file behind the stream, or else those of `like`, if that is there: its result will have them.
    """
    with _temporary_file("stdin") as path:
        with path.open("w+b", buffering=0) as file:
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                give_access(file.fileno(), access_of(Path(f"/proc/self/fd/{stream.fileno()}")))
            elif isinstance(like, (str, os.PathLike)) and (place := absolute(like)).is_file():
                give_access(file.fileno(), access_of(place))
            _receive(stream, file)
        yield path


@contextmanager
def _temporary_file(name: str) -> Iterator[Path]:
    """A path in a directory of its own, which is removed in the end. Errors have the name alone."""
    with TemporaryDirectory(prefix="tensorwire-") as folder:
        path = Path(folder, name)
        try:
            yield path
        except (TensorwireError, OSError, ValueError) as error:
            error.args = tuple(each.replace(str(path), name) if isinstance(each, str) else each for each in error.args)
            if isinstance(error, TensorwireError) and error.file == path:
                error.file = Path(name)
            if isinstance(error, OSError) and error.filename == str(path):
                error.filename = name
            raise


def _receive(stream: IO[bytes], file: Any) -> None:
    def until(nbytes: int) -> None:
        """Copy until the file has so many bytes, or the stream ends."""
        while (left := nbytes - file.tell()) > 0:
            _wait(stream, select.POLLIN)
            data = os.read(stream.fileno(), min(left, _CHUNK_NBYTES))
            if not data:
                break
            write_at(file.fileno(), file.tell(), memoryview(data), Path(file.name).parent)
            file.seek(len(data), os.SEEK_CUR)

    until(PREFIX_NBYTES)
    prefix = os.pread(file.fileno(), PREFIX_NBYTES, 0)
    if recognise(prefix) is TORCH_FILE:  # whose members are listed at its end
        advice = "name the file itself, since a stream is read no further than a header says"
        raise FormatError(f"expected a safetensors file, got {TORCH_FILE.name}", file=Path(file.name), advice=advice)
    with suppress(FormatError):  # which the reader of the file will raise too
        length = checked_length(prefix[:8], sys.maxsize)
        until(8 + length)
        header = parse_header(os.pread(file.fileno(), length, 8))
        until(header.data_start + header.data_nbytes + 1)


def _wait(stream: IO[bytes], event: int) -> None:
    """Until a stream is ready: a process that shares it may have made it one that does not wait."""
    poll = select.poll()
    poll.register(stream.fileno(), event)
    poll.poll()


def _send(path: Path, stream: IO[bytes]) -> None:
    with path.open("rb") as file:
        while data := memoryview(file.read(_CHUNK_NBYTES)):
            while data:
                _wait(stream, select.POLLOUT)
                data = data[os.write(stream.fileno(), data) :]


def _check_apart(src: PathOrStream, dst: PathOrStream) -> None:
    """Raise ValueError for one file that is both, or that lies where the result will be made: `< FILE` and `>> FILE`
    name one too."""
    with suppress(FileNotFoundError):
        a, b = _status(src), _status(dst)
        if a is not None and b is not None and stat.S_ISREG(a.st_mode) and os.path.samestat(a, b):
            raise ValueError("source and destination are the same file; name another destination")
    if isinstance(dst, (str, os.PathLike)) and not is_path(src):
        link = Path(f"/proc/self/fd/{src.fileno()}")  # to what was redirected
        place = absolute(dst)
        Destination(place, force=True, source_files=[link]).check_no_source_in(partial_path(place))


def _check_base_apart(dst: IO[bytes], base: BasePath | None) -> None:
    """Raise ValueError for a destination that is a file of the base: `<> FILE` and `>> FILE` do not empty it."""
    links: Any = [base] if is_path(base) else base or ()
    for link in filter(lambda each: not is_url(each), links):
        files = on_this_machine(tensor_files(locate(link)).values())
        if any(os.path.samestat(os.fstat(dst.fileno()), path.stat()) for path in files):
            raise ValueError("the destination is a file of the base; name another destination")


def _status(place: PathOrStream) -> os.stat_result | None:
    """What tells a file from another one; None for one of a store."""
    if isinstance(place, (str, os.PathLike)):
        return absolute(place).stat()
    return os.fstat(place.fileno()) if not is_path(place) else None


def _name(place: PathOrStream) -> str:
    return said(place) if is_path(place) else "-"
