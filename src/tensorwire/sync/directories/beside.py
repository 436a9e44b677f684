"""The small files of a version beside its tensors, in a directory that follows."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ..._ground.filesystem import close
from ...codec import content_hash
from .shown import check_free

if TYPE_CHECKING:
    from ..._ground.folder import Folder
    from ..frames import Frames
    from ..small_files import SmallFile
    from .kept import OpenDirectory, Serving


def check_small(place: OpenDirectory, frames: Frames) -> None:
    """Raise FileExistsError if something else has the name of a small file, unless it has the same content."""
    check_free(place, [name for name, small in frames.small.items() if not has_content(place.root, name, small)])


def write_small(found: Serving, folder: Folder, frames: Frames) -> list[str]:
    """Make the small files of a version in its folder: second names of those that serve where these did not change."""
    for name, small in frames.small.items():
        serves = found.name is not None and name in found.small and has_content(found.folder, name, small)
        if not serves or not found.folder.share(name, folder, name):
            folder.write(name, frames.fetch_small(name))
    return list(frames.small)


def has_content(folder: Folder, name: str, small: SmallFile) -> bool:
    """Whether a name leads to a file with the content of a small one."""
    try:
        descriptor = folder.open(name, os.O_RDONLY, follow=True)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != small.nbytes:
            return False
        data = os.pread(descriptor, small.nbytes + 1, 0)
        return len(data) == small.nbytes and content_hash(data) == small.hash
    finally:
        close(descriptor)


def write_over(folder: Folder, name: str, data: bytes) -> None:
    """Put content into a small file that stands there, and wait until it is on the disk."""
    with os.fdopen(folder.open(name, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
