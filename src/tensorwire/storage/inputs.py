"""Files and objects of a store, opened to be read."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from .local import InputFile
from .remote_file import RemoteFile

if TYPE_CHECKING:
    from typing import TypeAlias

    from .locations import Location

    Opened: TypeAlias = InputFile | RemoteFile


def open_input(location: Location) -> Opened:
    """A file or an object to be read."""
    return InputFile(location) if isinstance(location, Path) else RemoteFile(location)


def read_file(location: Location, max_nbytes: int) -> bytes:
    """All of it; OSError if it is larger than `max_nbytes`."""
    with open_input(location) as file:
        if file.nbytes > max_nbytes:
            raise OSError(errno.EFBIG, f"expected at most {max_nbytes} bytes, got {file.nbytes}", str(location))
        return file.read(0, file.nbytes)
