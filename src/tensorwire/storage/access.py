"""Permissions travel: only those that may read a source may read its result."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .remote import RemotePath

_ACL = "system.posix_acl_access"
PRIVATE = 0o600
"""The mode of a file in the making."""


class Access(NamedTuple):
    """Permission bits, owner and group."""

    mode: int
    uid: int
    gid: int

    def without_group(self) -> Access:
        """Members of the group get what all others get."""
        return self._replace(mode=self.mode & ~0o070 | (self.mode & 0o007) << 3)

    def meet(self, other: Access) -> Access:
        """What both allow."""
        both = self._replace(mode=self.mode & other.mode)
        return both if self.gid == other.gid else both.without_group()


def access_of(path: Path | RemotePath) -> Access:
    """What a file or directory allows; of an object, what a new file does. Links are followed. Where it has an access
    control list, the bits of the group are the most that the list gives to any user, and do not count."""
    if not isinstance(path, Path):
        return Access(0o666 & ~_umask(), os.geteuid(), os.getegid())
    status = path.stat()
    access = Access(status.st_mode & 0o777, status.st_uid, status.st_gid)
    return access.without_group() if _ACL in _attributes(path) else access


def give_access(target: Path | int, access: Access) -> None:
    """Give a path or descriptor these permissions, and owner and group as far as this process may.

    Raises:
        OSError: the permissions cannot be set.
    """
    try:
        os.chown(target, -1, access.gid)
    except OSError:
        access = access.without_group()
    # A process that could read the source by another right than the owner's owns the result.
    os.chmod(target, access.mode | (0o400 if access.uid != os.geteuid() else 0))  # noqa: PTH101 - or a descriptor
    with suppress(OSError):
        os.chown(target, access.uid, -1)


def dropped(path: Path | RemotePath) -> list[str]:
    """What a user has put on a file and a result does not get: its access control list, its extended attributes."""
    names = _attributes(path) if isinstance(path, Path) else []
    return ["its access control list"] * (_ACL in names) + [name for name in names if name.startswith("user.")]


def _umask() -> int:
    """The bits that new files of this process lack. To ask the system means to set them, which other threads see."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("Umask:")[2].split()[0], 8)


def _attributes(path: Path) -> list[str]:
    try:
        return sorted(os.listxattr(path))
    except OSError:  # a file system without any
        return []
