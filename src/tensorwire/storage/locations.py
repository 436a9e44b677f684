"""Where things are: a path on this machine, or a URL of another store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._ground.filesystem import absolute, is_same, lies_in
from .remote import RemotePath, is_url
from .secret_text import shown

if TYPE_CHECKING:
    from typing import TypeAlias

    from typing_extensions import TypeIs

    Location: TypeAlias = Path | RemotePath
    """What has a name, a parent, and perhaps files in it; `str` of it says nothing that may be secret."""

_LOCAL = ("file://", "local://")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+:)/(?!/)")


def locate(path: Any, storage_options: Mapping[str, Any] | None = None) -> Location:
    """A path from the root on, or where a URL leads; what is located already stays as it is.

    Raises:
        TypeError: it is neither path nor URL.
        ImportError: a URL needs a package that is missing.
        ValueError: there is no such kind of URL, or it has no such `storage_options`.
        FileNotFoundError: a path is relative, and the working directory is gone.
    """
    if isinstance(path, RemotePath):
        return path
    is_known = is_path(path)
    if not is_known:
        advice = "; give os.fsdecode(path)" if isinstance(path, bytes) else ""
        raise TypeError(f"expected a path or a URL, as str or os.PathLike, got {type(path).__name__}{advice}")
    check_slashes(path)
    if not is_url(path):
        return absolute(path)
    if path.startswith(_LOCAL):
        return absolute(path.partition("://")[2])
    return RemotePath.of(path, storage_options)


def check_slashes(path: Any) -> None:
    """Raise ValueError for a URL with one slash. It would be a path of this machine, which is never meant."""
    found = _ONE_SLASH.match(path) if isinstance(path, str) else None
    if found is not None and not os.path.lexists(found[1]):
        written = said(f"{found[1]}//{path[found.end() - (found[1] == 'file:') :]}")
        raise ValueError(f"expected a URL with two slashes behind {found[1]}, got one; write {written!r}")


def same(a: Location, b: Location) -> bool:
    """Whether both lead to one file or folder, by any names; of URLs, whether they are one."""
    if isinstance(a, Path) and isinstance(b, Path):
        return is_same(a, b)
    return a == b


def inside(a: Location, b: Location) -> bool:
    """Whether `a` leads to the folder `b` or into it."""
    if isinstance(a, Path) and isinstance(b, Path):
        return lies_in(a, b)
    both = isinstance(a, RemotePath) and isinstance(b, RemotePath)
    return both and (a == b or any(place == b for place in a.parents)) and b.is_dir()


def path_in(place: Location, folder: Location) -> str:
    """The path of what lies in a folder, with forward slashes."""
    if isinstance(place, Path):
        assert isinstance(folder, Path)
        return place.relative_to(folder).as_posix()
    assert isinstance(folder, RemotePath)
    return place.path_in(folder)


def on_this_machine(locations: Any) -> list[Path]:
    """The paths among them."""
    return [each for each in locations if isinstance(each, Path)]


def said(path: Any) -> str:
    """A path or URL as it was given, in a report or a message."""
    return shown(path) if is_url(path) else str(path)


def is_path(value: object) -> TypeIs[str | os.PathLike[str] | RemotePath]:
    """Whether a caller may name a file by it."""
    return isinstance(value, (str, os.PathLike, RemotePath))
