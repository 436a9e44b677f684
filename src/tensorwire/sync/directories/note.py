"""What a follower of a directory writes down of files that it has made: the version that they hold.

A note saves hashing the files. It is believed only while every file has the mark that it had. What is written into
changes its mark: a file that the note in place names is ours while it has the inode of its mark, or the time and size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._ground.filesystem import close
from ...errors import FormatError
from ...files.json_object import canonical, load
from ..versions import Position, is_number, parse_tensors

if TYPE_CHECKING:
    from ..._ground.folder import Folder

Marks = Mapping[str, "str | None"]
"""By file what tells it from any other: see `filesystem.mark_of`."""

_MAX_NBYTES = 1 << 30


class Note(NamedTuple):
    """
    Attributes:
        position: the version; None while files are written into, so that they hold none.
        marks: of the files.
    """

    position: Position | None
    marks: Marks

    def dump(self) -> bytes:
        position = None if self.position is None else self.position._asdict()
        return canonical({"position": position, "files": self.marks})


def read_note(folder: Folder, name: str) -> Note | None:
    """The note in a file. One that is missing, damaged or of another form says nothing: None."""
    try:
        descriptor = folder.open(name, os.O_RDONLY)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_size > _MAX_NBYTES:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return _parsed(load(file.read(_MAX_NBYTES)))
    except (FormatError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    finally:
        close(descriptor)


def _parsed(body: dict[str, Any]) -> Note | None:
    """Every value has the type that it should have, since the file may come from anywhere."""
    position, marks = body["position"], body["files"]
    if not isinstance(marks, dict) or not all(isinstance(each, str) for each in marks.values()):
        return None
    if position is None:
        return Note(None, marks)
    number, writer = position["number"], position["writer"]
    if not ((number is None or is_number(number)) and isinstance(writer, str)):
        return None
    return Note(Position(number, writer, parse_tensors(position["tensors"])), marks)
