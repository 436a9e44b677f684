"""The checkpoint that another one is relative to, as the operations take it: a path."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ..._ground.filesystem import absolute, is_same, lies_in, resolved
from ...codec import check_takes_base
from ...files.base import Base
from ...files.reader import StoredFile
from ...files.transfer import file_sha256
from ..directory.manifest import read_manifest
from ..directory.shards import safetensors_files

if TYPE_CHECKING:
    import os

    from ...codec import Profile


def open_base(path: str | os.PathLike[str], profile: Profile | None = None) -> Base:
    """All safetensors files of a file or directory, plain or compressed. The caller closes it.

    Args:
        profile: of what is to be compressed with it.

    Raises:
        FormatError, OSError: a file is damaged or cannot be read.
        ValueError: there is none, the base is relative to another one, or the profile takes none.
    """
    if profile is not None:
        check_takes_base(profile)
    root = absolute(path)
    with ExitStack() as stack:
        files = {file: stack.enter_context(StoredFile(place)) for file, place in safetensors_files(root).items()}
        base = Base(root, root.name if root.name not in ("", "..") else resolved(root).name, files)
        if any(stored.relative for stored in files.values()):
            raise ValueError(f"{root} is relative to a base itself; decompress it first, and give the result as base")
        stack.pop_all()
    return base


def check_apart(target: Path, base: Base) -> None:
    """Raise ValueError if a result would stand in the place of its own base, or in it."""
    hint = "name another destination"
    if any(is_same(target, stored.path) for stored in base.files.values()) or is_same(target, base.root):
        raise ValueError(f"{target} is the base, or a file of it; {hint}")
    if lies_in(target, base.root) or (target.is_dir() and lies_in(base.root, target)):
        raise ValueError(f"{target} and the base {base.root} must not lie in each other; {hint}")


def check_another(source: Path, base: Base) -> None:
    """Raise ValueError if what is to be compressed is its own base, or lies in it: nothing could restore the result
    once the source is gone, which is what many compress for."""
    if is_same(source, base.root) or lies_in(source, base.root) or lies_in(base.root, source):
        raise ValueError(
            f"{source} and the base {base.root} are the same or lie in each other, and the result could not be "
            "restored without the source; name an older checkpoint as base"
        )


def fingerprint(base: Base) -> list[list[object]]:
    """What changes when a file of the base does."""
    return [[path, *stored.file.identity] for path, stored in base.files.items()]


class BaseFiles:
    """The SHA-256 of the original files of a base that is a directory."""

    def __init__(self, base: Base) -> None:
        self._root = base.root
        manifest = read_manifest(base.root) if base.root.is_dir() else None
        self._recorded = None if manifest is None else {file.path: file.sha256 for file in manifest.files}

    def sha256(self, path: str) -> str | None:
        """That of the file at a relative path; None if there is none."""
        if self._recorded is not None:
            return self._recorded.get(path)
        place = self._root / path
        return file_sha256(place) if place.is_file() else None
