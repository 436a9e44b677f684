"""The checkpoint that another one is relative to: a path, a chain of them or arrays, as callers name it, or what
stands beside it under the name that it has recorded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .._ground.filesystem import resolved
from ..codec import check_takes_base
from ..errors import CorruptDataError, FormatError
from ..files.base import OUT_OF_ORDER, Base, BaseTensor
from ..files.beside import MAX_LINKS
from ..files.given_arrays import ArrayFile
from ..files.names import is_plain_relative, shown
from ..files.reader import StoredFile
from ..files.torch_file import open_stored
from ..files.transfer import file_sha256
from ..storage.locations import inside, is_path, locate, said, same
from .directory.manifest import manifest_of, read_manifest
from .directory.shards import tensor_files

if TYPE_CHECKING:
    from contextlib import ExitStack
    from typing import TypeAlias

    from ..codec import Profile
    from ..storage.locations import Location

    StrPath: TypeAlias = str | os.PathLike[str]
    BasePath: TypeAlias = StrPath | Sequence[StrPath]
    """A checkpoint; or a delta and what it is relative to, newest first."""
    PathOrArrays: TypeAlias = StrPath | Mapping[str, Any] | Sequence[StrPath | Mapping[str, Any]]
    """The same, where arrays may stand in last place."""

_MAX_NAME_NBYTES = 255
"""No file system has longer names."""


class Form(NamedTuple):
    """How a checkpoint is stored.

    Attributes:
        compressed: whether it is.
        base: the name of what it is relative to; None if it stands alone, or has not recorded it.
    """

    compressed: bool
    base: str | None = None


def form_of(path: Path) -> Form:
    """The form of a checkpoint, a directory or a file.

    Raises:
        FormatError: its manifest is damaged.
        OSError: it cannot be read.
    """
    if path.is_dir():
        manifest = read_manifest(path)
        return Form(manifest is not None, manifest.base.name if manifest is not None and manifest.base else None)
    try:
        with StoredFile(path) as stored:
            return Form(stored.compressed, stored.base_name)
    except FormatError:
        return Form(False)


def bases_beside(path: Path) -> list[Path]:
    """What a checkpoint is relative to, what that is relative to, and so on, where each stands beside the other.

    Raises:
        CorruptDataError: a name is none of a checkpoint beside it, or one is relative to itself.
        FormatError, OSError: one is damaged, missing or cannot be read.
    """
    found = [path]
    while (base := form_of(found[-1]).base) is not None:
        if "/" in base or not is_plain_relative(base) or not 0 < _name_nbytes(base) <= _MAX_NAME_NBYTES:
            text = f"expected the name of a checkpoint beside it as that of its base, got {shown(base)}"
            raise CorruptDataError(text, file=found[-1])
        if path.with_name(base) in found:
            text = "expected a checkpoint that is relative to another one, and not to itself"
            raise CorruptDataError(text, file=path)
        found.append(path.with_name(base))
    return found[1:]


def _name_nbytes(name: str) -> int:
    """How long a name is in a file system; 0 if none has it."""
    try:
        return len(os.fsencode(name))
    except UnicodeEncodeError:
        return 0


def enter(
    stack: ExitStack,
    base: PathOrArrays | None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    profile: Profile | None = None,
    takes_arrays: bool = False,
) -> Base | None:
    """All tensors of a file, directory or index, plain or compressed; of a delta with those of its own bases behind it.
    None without a base. `stack` closes it.

    Args:
        profile: of what is to be compressed with it.
        takes_arrays: whether a mapping may stand in last place.

    Raises:
        FormatError, OSError: a file is damaged or cannot be read.
        ValueError: there is none, or the profile takes none. The last one is relative to another one, one is there
            twice, or is not needed.
        TypeError: one is neither a path nor a mapping that may stand there.
        UnsupportedTensorError: an array has no bytes that can be read.
    """
    if base is None:
        return None
    if profile is not None:
        check_takes_base(profile)
    links: list[Any] = [base]
    if isinstance(base, Iterable) and not is_path(base) and not hasattr(base, "items"):
        links = list(base)
    if not 1 <= len(links) <= MAX_LINKS:
        raise ValueError(f"expected a base of 1 to {MAX_LINKS} checkpoints, newest first, got {len(links)}")
    opened: Base | None = None
    for number, link in reversed(list(enumerate(links, 1))):
        may_be_arrays = takes_arrays and number == len(links)
        opened = _open_link(link, storage_options, opened, stack, may_be_arrays=may_be_arrays)
        _check_link(opened)
    assert opened is not None
    _suspect_order(opened)
    return opened


def _suspect_order(base: Base) -> None:
    """Have errors say so if a link was made against one that stands before it, by the names of both."""
    newer: set[str] = set()
    for link in base.links():
        if any(stored.base_name in newer for stored in link.files.values()):
            for each in base.links():
                each.advice = OUT_OF_ORDER
        newer.add(link.name)


def name_of(base: BasePath | None) -> str | None:
    """The base as a report names it: of several the newest, which all others serve to read."""
    if base is None:
        return None
    first: Any = base
    return said(first if is_path(base) else first[0])


def checked_base(base: BasePath | None) -> list[str] | None:
    """The paths of a base; TypeError if it is neither a path nor a list of paths."""
    if base is None:
        return None
    paths: Any = base if isinstance(base, (list, tuple)) else [base]
    return [os.fspath(each) for each in paths]


def _open_link(
    link: Any, storage_options: Mapping[str, Any] | None, older: Base | None, stack: ExitStack, *, may_be_arrays: bool
) -> Base:
    """One checkpoint, in front of those that it may be relative to."""
    if hasattr(link, "items") and may_be_arrays:
        return Base(None, "", {"": stack.enter_context(StoredFile(ArrayFile(link)))})
    if not is_path(link):
        raise TypeError(
            f"expected the path of a checkpoint as base, got {type(link).__name__}; arrays are a base of save_file, "
            "load_file and open_file, the only one or the last of several"
        )
    root = locate(link, storage_options)
    files = {file: stack.enter_context(open_stored(place)) for file, place in tensor_files(root).items()}
    named = resolved(root) if isinstance(root, Path) and root.name in ("", "..") else root
    return Base(root, named.name, files, older)


def _check_link(base: Base) -> None:
    """Raise ValueError if a checkpoint lacks others behind it, or stands there with some that are not needed."""
    is_relative = any(tensor.needs_base for tensor in base.tensors())
    if base.older is None:
        if is_relative:
            raise ValueError(
                f"{base.root} is relative to a base itself; decompress it first, or name its own base behind it: "
                "base=[NEWEST, ..., OLDEST] (--base once for each, newest first)"
            )
        return
    if any(_identities(base) == _identities(link) for link in base.older.links()):
        raise ValueError(f"{base.root} is there twice among the checkpoints of the base; leave one out")
    if not is_relative and base.older.names() <= base.names():
        raise ValueError(
            f"{base.root} is relative to nothing, so what stands behind it is not needed; leave that out, or name the "
            "newest one first"
        )


def _identities(base: Base) -> list[list[int]]:
    """What tells its files from others."""
    return sorted(stored.file.identity for stored in base.files.values())


def check_apart(target: Location, base: Base) -> None:
    """Raise ValueError if a result would stand in the place of its own base, or in it."""
    hint = "name another destination"
    for root in base.roots():
        if same(target, root) or any(same(target, path) for path in base.paths()):
            raise ValueError(f"{target} is the base, or a file of it; {hint}")
        if inside(target, root) or inside(root, target):
            raise ValueError(f"{target} and the base {root} must not lie in each other; {hint}")


def check_keeps_arrays(target: Location, base: Base, used: Iterable[BaseTensor], threads: int | None) -> None:
    """Raise ValueError if the file that a result replaces has content of arrays which the result needs: they may come
    from that file, and once it is gone nothing could restore the result. What the file only says to be equal to its own
    base is none of its content.

    Args:
        used: the tensors of `base` that those of the result are relative to.
    """
    arrays = [each for link in base.links() if link.root is None for each in link.tensors()]
    if not arrays:
        return
    needed = {each.hash(threads) for each in used}
    needed.update(each.base_hash or "" for link in base.links() for each in link.tensors())
    nbytes = {each.hash(threads): each.nbytes for each in arrays if each.hash(threads) in needed}
    sizes = set(nbytes.values())
    with suppress(FormatError, OSError), closing(open_stored(target)) as stored:  # else it holds no tensors
        for tensor in stored.tensors.values():
            found = BaseTensor("", stored, tensor)
            if found.nbytes in sizes and found.hash(threads) in nbytes and found.hash(threads) != found.base_hash:
                raise ValueError(
                    f"{target} holds tensor {shown(tensor.name)} as the arrays of base have it, and the result could "
                    "not be restored without it; name another destination, or give base by its path if it stands "
                    "elsewhere"
                )


def check_apart_from(target: Location, source: Location) -> None:
    """Raise ValueError if a result would stand in the place of its source, or in it."""
    if same(target, source) or inside(target, source) or inside(source, target):
        raise ValueError(f"{target} and {source} are the same or lie in each other; name another destination")


def check_another(source: Location, base: Base) -> None:
    """Raise ValueError if what is to be compressed is its own base, or lies in it: nothing could restore the result
    once the source is gone, which is what many compress for."""
    for root in base.roots():
        if same(source, root) or inside(source, root) or inside(root, source):
            raise ValueError(
                f"{source} and the base {root} are the same or lie in each other, and the result could not be "
                "restored without the source; name an older checkpoint as base"
            )


def fingerprint(base: Base) -> list[list[object]]:
    """What changes when a file of the base does."""
    return [[path, *stored.file.identity] for link in base.links() for path, stored in link.files.items()]


class BaseFiles:
    """The SHA-256 of the original files of a base that is a directory."""

    def __init__(self, base: Base) -> None:
        assert base.root is not None
        self._root = base.root
        manifest = manifest_of(base.root) if base.root.is_dir() else None
        self._recorded = None if manifest is None else {file.path: file.sha256 for file in manifest.files}

    def sha256(self, path: str) -> str | None:
        """That of the file at a relative path; None if there is none."""
        if self._recorded is not None:
            return self._recorded.get(path)
        place = self._root / path
        return file_sha256(place) if place.is_file() else None
