"""What a file that is being written may be relative to: the files of its directory that are written before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .base import BaseTensor
from .json_object import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .base_content import Place
    from .header import TensorEntry
    from .reader import StoredFile, StoredTensor


MIN_BESIDE_NBYTES = 4096
"""A frame that is relative to a tensor of another file must save this much: a file that needs others is a nuisance. So
tensors that are not larger are none of those."""


class Contents:
    """Where each content of the files stands that are written so far."""

    def __init__(self) -> None:
        self._first: dict[bytes, Place] = {}
        self._whole: dict[tuple[bytes, str], Place] = {}
        self._longest: dict[int, Place] = {}

    def add(self, path: str, name: str, nbytes: int, content_hash: str, *, whole: bool) -> None:
        """Add a tensor of a file; `whole`: the file needs no others."""
        if nbytes <= MIN_BESIDE_NBYTES:
            return
        key, place = bytes.fromhex(content_hash), (path, name)
        self._first.setdefault(key, place)
        if whole:
            self._whole.setdefault((key, _folder(path)), place)
        known = self._longest.get(nbytes, place)
        self._longest[nbytes] = (max(known[0], path, key=_length), max(known[1], name, key=_length))

    def equal(self, path: str, content_hash: str) -> Place | None:
        """The tensor with a content that one of the file at `path` may be relative to: one beside it that is whole, or
        else the first of all."""
        key = bytes.fromhex(content_hash)
        return self._whole.get((key, _folder(path))) or self._first.get(key)

    def longest(self, nbytes: int) -> Place | None:
        """The longest path and the longest name of tensors of a size; None if there are none."""
        return self._longest.get(nbytes)


class OlderFile(NamedTuple):
    """The file of an older checkpoint that one is relative to.

    Attributes:
        path: in the directory.
        stored: its source.
        hashes: by name the content hashes of the tensors in what was written of it; None if that is not known yet.
    """

    path: str
    stored: StoredFile
    hashes: Mapping[str, str | None] | None


class FilesBefore(NamedTuple):
    """The files before the one at `path`, where one has a use.

    Attributes:
        contents: of those that its tensors may be equal to.
        older: the same file of an older checkpoint.
    """

    path: str
    contents: Contents | None = None
    older: OlderFile | None = None

    def equal(self, content_hash: str) -> Place | None:
        """Where this content stands."""
        return None if self.contents is None else self.contents.equal(self.path, content_hash)

    def older_tensor(self, tensor: TensorEntry) -> BaseTensor | None:
        """The tensor of the same name, dtype and size in the older file."""
        if self.older is None or tensor.name not in self.older.stored.tensors or tensor.nbytes <= MIN_BESIDE_NBYTES:
            return None
        found = OlderTensor(self.older, self.older.stored.tensors[tensor.name])
        return found if (found.dtype, found.nbytes) == (tensor.dtype, tensor.nbytes) else None

    def longest(self, tensors: Iterable[TensorEntry]) -> dict[str, Place]:
        """By the name of a tensor the longest texts that can be said of its base; of those that can have one."""
        found = {}
        for tensor in tensors:
            places = [] if self.contents is None else [self.contents.longest(tensor.nbytes)]
            if self.older is not None and tensor.name in self.older.stored.tensors:
                places.append((self.older.path, tensor.name))
            known = [place for place in places if place is not None]
            if known:
                files, names = zip(*known, strict=True)
                found[tensor.name] = (max(files, key=_length), max(names, key=_length))
        return found


class OlderTensor(BaseTensor):
    """A tensor of an older checkpoint that is read from its source, and stands in what was written of it."""

    def __init__(self, older: OlderFile, tensor: StoredTensor) -> None:
        super().__init__(older.path, older.stored, tensor)
        self._written = None if older.hashes is None else older.hashes.get(tensor.name, "")

    def still_has(self, content_hash: str, threads: int | None) -> bool:
        """Whether what was written has the content that was read."""
        return self._written in (None, content_hash)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _length(text: str) -> int:
    """How much room a text takes in a header."""
    return len(canonical(text))
