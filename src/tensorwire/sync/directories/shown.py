"""Entries of a followed directory that lead to a version: links of ours, or second names of its files; and files that
stand there without a version, in place.

A name is free if nothing has it, or if what has it is such an entry of this version or another one. Only such entries
are ever replaced or removed; what has the name of a file of ours otherwise is an error.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...checkpoint.directory.paths import is_index, is_safetensors
from ..small_files import MAX_NBYTES, is_small
from .kept import LINK_PREFIX, temporary

if TYPE_CHECKING:
    from ..._ground.folder import Folder
    from .kept import OpenDirectory


def check_free(place: OpenDirectory, names: Sequence[str]) -> None:
    """Raise FileExistsError for a name that something else has."""
    noted = place.noted(place.note_in_place())
    for name in names:
        if place.root.status(name) is not None and name not in noted and not _is_ours(place, name):
            text = "is none of the follower's files, and a file of the version has this name; move it away"
            raise FileExistsError(errno.EEXIST, text, str(place.root.path / name))


def show(place: OpenDirectory, version: str, names: Sequence[str], *, copies: bool) -> None:
    """Have files of a version stand in the directory: links through `current`, or with `copies` second names.

    Raises:
        FileExistsError: a name is not free.
    """
    with place.own.enter(version) as folder:
        for name in names:
            target = place.root.target_of(name)
            if target == LINK_PREFIX + name if not copies else target is None and place.has_in(version, name):
                continue
            status = place.root.status(name)
            if status is None and (copies and folder.share(name, place.root, name)):
                continue
            if status is None and not copies:
                place.root.make_link(name, LINK_PREFIX + name)
                continue
            check_free(place, [name])
            new = temporary()
            if not copies:
                place.own.make_link(new, LINK_PREFIX + name)
            elif not folder.share(name, place.own, new):
                _copy(folder, name, place.own, new)
            _put(place, new, name, status)


def hide(place: OpenDirectory, names: Sequence[str]) -> None:
    """Remove the entries of ours that have other names than these."""
    noted = place.noted(place.note_in_place())
    others = [name for name in place.root.names() if name not in names]
    for name in [name for name in others if name in noted or _is_ours(place, name)]:
        place.root.remove(name)


def _is_ours(place: OpenDirectory, name: str) -> bool:
    """Whether an entry leads to a version, or was put there for one."""
    is_link = place.root.target_of(name) == LINK_PREFIX + name
    if is_link or not is_small(name):
        return is_link or ((is_safetensors(name) or is_index(name)) and place.has(name))
    return any(_has_equal(place, version, name) for version in place.versions())


def _has_equal(place: OpenDirectory, version: str, name: str) -> bool:
    """Whether the small file of a version is what a name in the directory leads to, or has the same content."""
    with place.own.enter(version) as folder:
        ours = _content(folder, name, follow=False)
    return ours is not None and ours == _content(place.root, name, follow=True)


def _content(folder: Folder, name: str, *, follow: bool) -> bytes | None:
    """That of a small file; None if it is none."""
    try:
        descriptor = folder.open(name, os.O_RDONLY, follow=follow)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_NBYTES:
            return None
        return file.read(MAX_NBYTES)


def _copy(folder: Folder, name: str, other: Folder, new: str) -> None:
    """A file once more, with the time of the first, where the file system has no hard links."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(folder.open(name, os.O_RDONLY), "rb") as source, os.fdopen(other.open(new, flags), "wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())
    status = folder.status(name)
    assert status is not None
    other.set_time(new, status)


def _put(place: OpenDirectory, new: str, name: str, status: os.stat_result | None) -> None:
    """Give what was made in our folder its name, in the place of what has it. If that is another thing by now, it
    stays."""
    if not (status is not None and place.own.exchange(new, place.root, name)):
        place.own.move(new, place.root, name)
        return
    found = place.own.status(new)
    if found is None or not os.path.samestat(found, status):
        place.own.exchange(new, place.root, name)
        place.own.remove(new)
        raise FileExistsError(errno.EEXIST, "has come there meanwhile; move it away", str(place.root.path / name))
    place.own.remove(new)
