"""Which step makes each file of a base the one that a delta leads to: decided from what is known, without the disk."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from ...files.names import shown
from ..directory.manifest import OF_TENSORS
from ..directory.paths import is_history, parents

if TYPE_CHECKING:
    from ..directory.paths import Listing
    from ..directory.sources import SourceFile, Sources

OUT = "name another destination and decompress it to that"


class Step(NamedTuple):
    """What is to be done with a file of the base.

    Attributes:
        mark: of what stands at `place`; None if nothing does.
        is_done: it is the new file already.
        num_tensors, num_compressed, num_relative: of the delta's file.
        sha256: of the new file, where the delta holds it as it is.
        hashes: content hashes of its tensors, as far as they are known, so that each is read for that only once.
    """

    source: SourceFile
    place: Path
    mark: str | None
    is_done: bool
    num_tensors: int = 0
    num_compressed: int = 0
    num_relative: int = 0
    sha256: str | None = None
    hashes: Mapping[str, str | None] = MappingProxyType({})


def tensors_first(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Files of tensors come first: they are the ones that may not fit the base."""
    return sorted(files, key=lambda file: (file.kind not in OF_TENSORS, file.path))


def listed(sources: Sources) -> list[str]:
    """The paths of all files of a delta, and of the directories in which none stands.

    Raises:
        ValueError: one lies in the history of a clone, whose hooks are programs. The base's history is not looked at,
            nor whether links in it lead elsewhere.
    """
    paths = [*(source.path for source in sources.files), *sources.directories]
    for path in paths:
        if is_history(path.rstrip("/")):
            raise ValueError(f"{shown(path)} lies in the history of a clone, which is never changed in place; {OUT}")
    return paths


def unlisted(paths: Iterable[str], found: Listing) -> list[str]:
    """What a base has beside the paths of a delta. Neither its history counts, nor what an apply of it leaves."""
    known = set(paths)
    known |= {f"{path}.partial/" for path in known} | {place for path in known for place in parents(path)}
    left = [path for path in found.excluded if not is_history(path.rstrip("/"))]  # staging directories of other runs
    return [path for path in (*(file.path for file in found.files), *found.directories, *left) if path not in known]


def is_whole_new(source: SourceFile, place: Path, found: str, new: str, *, force: bool) -> bool:
    """Whether the file at a place, which is replaced as a whole, is the new one already.

    Args:
        found, new: SHA-256 of what stands there, and of what shall.
        force: replace it in any case.

    Raises:
        FileExistsError: it is neither the new one nor the base's.
    """
    old = None if source.known is None else source.known.base_sha256
    if found not in (new, old) and not force:
        text = "is neither that of the base nor the new one: it was edited; pass force=True to replace it"
        raise FileExistsError(errno.EEXIST, text, str(place))
    return found == new


def has_content(wanted: Mapping[str, str | None], hash_of: Callable[[str], str]) -> bool:
    """Whether tensors have the content hashes that are wanted by name; None if the delta does not tell.

    ``hash_of(name)`` may take a read of the tensor, so none follows the first that differs.
    """
    return all(expected is not None and hash_of(name) == expected for name, expected in wanted.items())
