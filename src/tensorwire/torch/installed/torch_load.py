"""`torch.load`, which reads compressed torch files too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checkpoint.directory.manifest import record_of
from ...errors import BaseMismatchError, ErrorContext, FormatError, TensorwireError
from ...files.beside import open_beside
from ...files.names import shown
from ...files.original_file import OriginalFile
from ...files.original_record import TORCH, Record
from ...files.original_view import OriginalReader
from ...storage.spool import SpoolFile, is_spooled
from .look import NO_BASE, header_in, is_ours

if TYPE_CHECKING:
    from typing import BinaryIO

    from ...files.reader import StoredFile


def loading(theirs: Callable[..., Any], is_on: Callable[[], bool]) -> Callable[..., Any]:
    """`torch.load` that makes the original of a compressed torch file while torch reads it. All else is theirs.

    A storage is decoded into the memory that torch has made for it. With ``mmap=True`` too: there is nothing to map.
    """

    @wraps(theirs)
    def load(f: Any, *arguments: Any, **options: Any) -> Any:
        with _named():
            original = _original(f) if is_on() else None
        if original is None:
            return theirs(f, *arguments, **options)
        if isinstance(f, (str, os.PathLike)):
            options["mmap"] = False
        with original, _named():
            try:
                return theirs(original, *arguments, **options)
            except Exception:
                if original.error is not None:
                    raise original.error from None
                raise

    return load


@contextmanager
def _named() -> Iterator[None]:
    """Errors name no temporary file."""
    try:
        yield
    except TensorwireError as error:
        if is_spooled(error.file):
            error.file = None
        raise


def _original(f: Any) -> OriginalFile | None:
    """The original of a compressed torch file; None of anything else."""
    if isinstance(f, (str, os.PathLike)):
        return _opened(_absolute(f)) if is_ours(f) else None
    try:
        start = f.tell()
        header = header_in(lambda offset, nbytes: _read(f, start + offset, nbytes))
        f.seek(start)
    except (AttributeError, OSError, TypeError, ValueError):
        return None  # torch says what it expects
    if not header:
        return None
    if start == 0 and (path := _path_of(f)) is not None:
        return _opened(path) if is_ours(path) else None
    with closing(SpoolFile()) as file:
        file.write(0, f.read())
        f.seek(start)
        return _opened(file.location) if is_ours(file.location) else None  # by a descriptor of its own


def _read(f: BinaryIO, offset: int, nbytes: int) -> bytes:
    f.seek(offset)
    return f.read(nbytes)


def _path_of(f: BinaryIO) -> Path | None:
    """By which path a file object was opened, as far as that still leads to it."""
    try:
        path = _absolute(f.name)
        return path if os.path.samestat(os.fstat(f.fileno()), path.stat()) else None
    except (AttributeError, OSError, TypeError, ValueError):
        return None


def _absolute(path: Any) -> Path:
    """Links are kept: what tells of a file lies beside them."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _opened(path: Path) -> OriginalFile | None:
    stored = open_beside(path)
    try:
        if stored.kind == TORCH:
            with ErrorContext(file=path):
                _check_alone(stored)
                return OriginalFile(OriginalReader(stored, _record(stored), None))
    except BaseException:
        stored.close()
        raise
    stored.close()
    return None


def _check_alone(stored: StoredFile) -> None:
    for tensor in stored.tensors.values():
        if stored.needs_base(tensor):
            base = "" if stored.base_name is None else f", this one is relative to {shown(stored.base_name)}"
            raise BaseMismatchError(f"expected a file that needs no base{base}", tensor=tensor.name, advice=NO_BASE)


def _record(stored: StoredFile) -> Record:
    record = record_of(stored)
    if record is None or record.kind != TORCH:
        raise FormatError(
            "expected the record of a torch file in it or in the tensorwire.json of its directory, got none",
            advice="load it by its path in the directory that tensorwire compress made: its tensors alone are here, "
            "which tensorwire.load_file gives",
        )
    return record
