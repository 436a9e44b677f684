"""Names of files inside a checkpoint: plain relative paths with forward slashes."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from ...errors import CorruptDataError
from ..file.names import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MANIFEST_NAME = "tensorwire.json"
CONFIG_NAME = "config.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

_MAX_PATH_LENGTH = 4096


class FoundFile(NamedTuple):
    """A file of a directory: its relative path, where it is, and its size."""

    path: str
    location: Path
    nbytes: int


def is_safetensors(path: str) -> bool:
    return path.endswith(".safetensors")


def is_index(path: str) -> bool:
    return path.endswith(".json") and ".safetensors.index" in path


def is_config(path: str) -> bool:
    return path == CONFIG_NAME or path.endswith("/" + CONFIG_NAME)


def parent(path: str) -> str:
    """The directory of a relative path, "" for the root."""
    return path.rpartition("/")[0]


def join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def is_plain_relative(path: str) -> bool:
    """Whether a path names something inside the directory that it is relative to, whatever the platform."""
    return (
        0 < len(path) <= _MAX_PATH_LENGTH
        and "\0" not in path
        and "\\" not in path
        and ":" not in path.split("/", 1)[0]
        and all(part not in ("", ".", "..") for part in path.split("/"))
    )


def check_paths(paths: Iterable[str]) -> None:
    """Check paths that come from a manifest: plain, unique, and none a directory of another.

    Raises:
        CorruptDataError
    """
    seen: set[str] = set()
    directories: set[str] = set()
    for path in paths:
        if not is_plain_relative(path) or not _is_unicode(path):
            raise CorruptDataError(f"expected a plain relative path inside the checkpoint, got {shown(path)}")
        if path in seen:
            raise CorruptDataError(f"expected unique paths, got {shown(path)} twice")
        seen.add(path)
        directory = parent(path)
        while directory:
            directories.add(directory)
            directory = parent(directory)
    for path in seen & directories:
        raise CorruptDataError(f"expected {shown(path)} to be a file or a directory, not both")


def scan(root: Path) -> list[FoundFile]:
    """The files of a directory, at any depth, sorted by path. Links to files are followed.

    Raises:
        ValueError: a link to a directory, something that is neither file nor directory, or a name that a manifest
            cannot hold.
        OSError: reading fails, a link leads nowhere.
    """
    return sorted(_walk(root, ""))


def _walk(directory: Path, prefix: str) -> Iterator[FoundFile]:
    with os.scandir(directory) as entries:
        for entry in entries:
            path = prefix + entry.name
            if not is_plain_relative(path) or not _is_unicode(path):
                raise ValueError(f"file {shown(path)}: expected a name of valid Unicode without backslash; rename it")
            location = directory / entry.name
            if entry.is_dir():
                if entry.is_symlink():
                    raise ValueError(
                        f"{shown(path)} is a link to a directory, which may lead anywhere; replace it by a copy"
                    )
                yield from _walk(location, path + "/")
                continue
            status = location.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{shown(path)} is neither a file nor a directory")
            yield FoundFile(path, location, status.st_size)


def _is_unicode(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
