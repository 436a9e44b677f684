"""Names of files inside a checkpoint: plain relative paths with forward slashes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..._ground.filesystem import following
from ...errors import CorruptDataError
from ...files.names import MANIFEST_NAME as MANIFEST_NAME
from ...files.names import MAX_DEPTH, shown
from ...files.names import is_plain_relative as is_plain_relative
from ...storage.remote import RemotePath
from ...storage.staging import is_staging
from ...storage.upload import UPLOAD_NAME

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    from ...storage.locations import Location

CONFIG_NAME = "config.json"
MODULES_NAME = "modules.json"
"""Where sentence-transformers lists the folders of a model's layers."""
GIT_DIRECTORY = ".git"
SYNC_DIRECTORY = ".tensorwire-sync"
"""Where a follower keeps what belongs to no version."""
MODEL_SUFFIXES = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".npz", ".npy", ".gguf", ".onnx", ".h5",
    ".hdf5", ".keras", ".msgpack", ".tflite", ".ot",
)  # fmt: skip
"""How names of files end that hold a model's tensors, in small letters."""


class FoundFile(NamedTuple):
    """A file of a directory: its relative path, where it is, and its size."""

    path: str
    location: Location
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


def parents(path: str) -> list[str]:
    """The directories that a relative path leads through, with a slash at the end."""
    return [path[: index + 1] for index, character in enumerate(path) if character == "/"]


def without_dots(path: str) -> str:
    """The relative path of a file without the parts that lead nowhere: "./a//b" is "a/b"."""
    if path.startswith("/") or path.endswith("/"):
        return path
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def is_listable(path: str) -> bool:
    """Whether a manifest can hold a relative path."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return is_plain_relative(path)


def check_paths(paths: Iterable[str]) -> None:
    """Raise CorruptDataError unless the paths of a manifest are plain, unique, and none a directory of another."""
    beginnings = []
    for path in paths:
        if not is_listable(path):
            raise CorruptDataError(f"expected a plain relative path inside the checkpoint, got {shown(path)}")
        beginnings.append(path + "/")
    # In this order what lies in a directory comes right behind it.
    for one, other in pairwise(sorted(beginnings)):
        if one == other:
            raise CorruptDataError(f"expected unique paths, got {shown(one[:-1])} twice")
        if other.startswith(one):
            raise CorruptDataError(f"expected {shown(one[:-1])} to be a file or a directory, not both")


class Listing(NamedTuple):
    """What is in a directory, at any depth, sorted.

    Attributes:
        files: those that count.
        directories: relative paths, with a slash at the end, of those in which nothing that counts stands.
        excluded: relative paths of the files and directories that do not count; a directory's ends with a slash.
    """

    files: list[FoundFile]
    directories: list[str]
    excluded: list[str]


def scan(root: Location, exclude: Sequence[str] = ()) -> Listing:
    """The files of a directory, at any depth. Links to files are followed. Staging directories do not count: what a
    run in place makes beside the files, or has left there, is none of them.

    Args:
        exclude: patterns as in a .gitignore. They come after `.git`, the history of a clone, and the directory of
            a follower: "!.git" includes the first.

    Raises:
        ValueError: a link to a directory, something that is neither file nor directory, a name that a manifest cannot
            hold, more than 100 directories one in another, or a pattern that is none.
        TypeError: `exclude` is one pattern, not a list of them.
        OSError: reading fails, a link leads nowhere.
        CorruptDataError: an upload into the directory has not ended.
    """
    from pathspec import GitIgnoreSpec

    if isinstance(exclude, (str, bytes)):
        raise TypeError(f"expected a list of patterns as exclude, got {exclude!r}; put it into brackets")
    try:
        spec = GitIgnoreSpec.from_lines([GIT_DIRECTORY, SYNC_DIRECTORY, *exclude])
    except (re.error, ValueError) as error:
        raise ValueError(f"expected patterns as in a .gitignore in exclude, got one that is none: {error}") from None
    found = Listing([], [], [])
    if isinstance(root, RemotePath):
        _list(root, spec, found)
    else:
        _walk(root, "", spec, found)
    expect_ended(root, (file.path for file in found.files))
    return Listing(sorted(found.files), sorted(found.directories), sorted(found.excluded))


def expect_ended(root: Location, names: Iterable[str]) -> None:
    """
    Raises:
        CorruptDataError: an upload into the folder has not ended, so that old and new files may stand there.
    """
    if UPLOAD_NAME in names:
        raise CorruptDataError(
            f"expected a whole checkpoint, got one whose upload has not ended: {UPLOAD_NAME} stands there",
            file=root,
            advice="wait for it, or run the same command again; with force another one takes its place",
        )


def is_in_hub_cache(path: Path) -> bool:
    """Whether a path leads into a snapshot of a model in a hub's cache, or is one, or stands beside them."""
    return any(
        place.name == "snapshots" and ((place.parent / "blobs").is_dir() or (place.parent / "refs").is_dir())
        for place in (path, *path.parents)
    )


def is_history(path: str) -> bool:
    """Whether a relative path leads into the history of a clone."""
    return GIT_DIRECTORY in path.split("/")


def _list(root: RemotePath, spec: GitIgnoreSpec, found: Listing) -> None:
    """The objects of a folder in a store, which knows no empty folders."""
    excluded = set()
    for location in root.files():
        path = location.path_in(root)
        left_out = next((place for place in (*parents(path), path) if spec.match_file(place)), None)
        if left_out is not None:
            excluded.add(left_out)
            continue
        if not is_listable(path):
            raise ValueError(f"object {shown(path)}: expected a plain relative path of valid Unicode; rename it")
        found.files.append(FoundFile(path, location, location.stat().st_size))
    found.excluded.extend(excluded)


def _walk(directory: Path, prefix: str, spec: GitIgnoreSpec, found: Listing) -> None:
    num_before = len(found.files) + len(found.directories)
    with os.scandir(directory) as entries:
        for entry in entries:
            path = prefix + entry.name
            directory_path = path + "/" if entry.is_dir() else path
            location = directory / entry.name
            if spec.match_file(directory_path) or (entry.is_dir() and is_staging(location)):
                found.excluded.append(directory_path)
                continue
            if not is_listable(path):
                raise ValueError(f"file {shown(path)}: expected a name of valid Unicode without backslash; rename it")
            if entry.is_dir():
                if entry.is_symlink():
                    raise ValueError(
                        f"{shown(path)} is a link to a directory, which may lead anywhere; "
                        "replace it by a copy, or exclude it"
                    )
                if path.count("/") == MAX_DEPTH:
                    raise ValueError(f"{shown(path)} lies in {MAX_DEPTH} directories; move it up, or exclude it")
                _walk(location, directory_path, spec, found)
                continue
            with following(location):
                status = location.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{shown(path)} is neither a file nor a directory; move it away, or exclude it")
            found.files.append(FoundFile(path, location, status.st_size))
    if prefix and len(found.files) + len(found.directories) == num_before:
        found.directories.append(prefix)
