"""The base of a checkpoint: the tensors of another one, plain or compressed, that its frames are relative to. If that
one is relative itself, older ones stand behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from .._ground.copies import not_copied
from ..codec import base_mismatch, content_hash
from ..errors import BaseMismatchError, CorruptDataError, ErrorContext, FormatError, LimitExceededError
from .given_arrays import ArrayFile
from .json_object import canonical
from .names import shown

if TYPE_CHECKING:
    from ..codec import FrameInfo
    from ..storage.locations import Location
    from .reader import StoredFile, StoredTensor


MAX_RELATIVE = 16
"""How many times as large as its base all that is relative to it may be: a frame that changes nothing is as small for
a large tensor as for a small one, so nothing but the base bounds what a file can claim."""

_ADVICE = "give the checkpoint that it was made against, as it was then, and if that is a delta its own base behind it"
OUT_OF_ORDER = "the checkpoints of the base are out of order: name the newest first, and each before what it needs"


def identity(tensors: Iterable[tuple[str, str, tuple[int, ...], str]]) -> str:
    """The content hash of the JSON of a sorted list of all tensors: docs/checkpoints.md, "Identity"."""
    return content_hash(canonical(sorted(tensors)), threads=1)


class BaseTensor:
    """A tensor of a base, or of what is compared to one; of a delta it is what its frame makes. Thread-safe.

    Attributes:
        name, dtype, shape, nbytes: of its content.
        file: relative path of the file that holds it.
        stored: that file.
        tensor: what the file says of it.
        is_relative: whether it can be read only with a base of its own.
        needs_base: whether that has to be given, since it is in no other file of the directory.
        known_hash: its content hash; None as long as it is not known.
        base_hash: the content hash of what it is relative to; None if it is not.
    """

    __reduce_ex__ = not_copied("an open file", "open the base again by its path")

    def __init__(self, file: str, stored: StoredFile, tensor: StoredTensor) -> None:
        self.name = tensor.name
        self.file = file
        self.stored = stored
        self.tensor = tensor
        self.dtype, self.shape, self.nbytes = stored.layout(tensor.name)
        self._lock = threading.Lock()
        self.known_hash: str | None = None
        self.base_hash: str | None = None
        self.is_relative = stored.is_relative(tensor)
        self.needs_base = stored.needs_base(tensor)
        if tensor.compressed:  # the header of its frame has a checksum, and each block is checked when it is read
            info = stored.frame(tensor).info
            self.known_hash, self.base_hash = info.content_hash, info.base_hash
            stored.forget(tensor)

    def read(self, start: int, out: memoryview, *, threads: int | None) -> None:
        """Put content bytes from `start` on into `out`."""
        with ErrorContext(file=self.stored.path, tensor=self.name):
            self.stored.read(self.tensor, start, out, threads=threads)

    def find_own_base(self, *, threads: int | None, verify: bool) -> None:
        """Find all that this tensor is relative to, down to one that is not. Errors are those of `Base.find`."""
        if self.is_relative:
            self.stored.base_of(self.tensor, threads=threads, verify=verify)

    def has_own_bytes(self) -> bool:
        """Whether its size is borne out by bytes: its own, or those of another file of its directory."""
        if not self.is_relative:
            return True
        if self.needs_base:
            return False
        with suppress(BaseMismatchError, FormatError):
            self.find_own_base(threads=None, verify=False)
            return True
        return False

    def check_unchanged(self) -> None:
        """Raise OSError if a file that the content comes from was written to since it was opened."""
        self.stored.file.check_unchanged()
        if self.is_relative:
            self.stored.base_of(self.tensor).check_unchanged()

    def hash(self, threads: int | None) -> str:
        """The content hash. That of a plain tensor takes a read of all of it, once."""
        with self._lock:
            if self.known_hash is None:
                self.known_hash = self.stored.hash_content(self.tensor, threads)
            return self.known_hash

    def still_has(self, content_hash: str, threads: int | None) -> bool:
        """Whether the content is the one with this hash, which a reader of all of it has found. A plain tensor
        is read again: others may write to it.

        Raises:
            CorruptDataError: the header of a frame claims another one, and its own base did not change.
        """
        with self._lock:
            if not self.tensor.compressed:
                self.known_hash = self.stored.hash_content(self.tensor, threads)
            elif self.known_hash != content_hash and self.still_has_base(threads):
                raise CorruptDataError(
                    f"expected content with hash {self.known_hash}, got {content_hash}",
                    file=self.stored.path,
                    tensor=self.name,
                    advice="the base is damaged: fetch it again",
                )
            return self.known_hash == content_hash

    def still_has_base(self, threads: int | None) -> bool:
        """False if something that this tensor is relative to has changed."""
        if self.base_hash is None:
            return True
        base = self.stored.base_of(self.tensor)
        return base.still_has(self.base_hash, threads) and base.still_has_base(threads)


class _Alike(NamedTuple):
    """The tensors of one dtype and size: those whose content was not asked for, the first one last, and the first
    of each content hash."""

    rest: list[BaseTensor]
    hashed: dict[str, BaseTensor]


class Base:
    """All tensors of a base.

    Attributes:
        root: the file, directory or index; None for arrays.
        name: what it is called; empty for arrays.
        files: its safetensors files by relative path, open.
        older: where its own relative tensors find their bases.
        advice: what to do if a base is not found here.
        nbytes: of the content of all its tensors that are not relative, and of those of older ones.
        num_relative_nbytes: of the tensors that were made relative to it so far.
    """

    def __init__(
        self, root: Location | None, name: str, files: Mapping[str, StoredFile], older: Base | None = None
    ) -> None:
        self.root = root
        self.name = name
        self.files = files
        self.older = older
        self.advice = _ADVICE
        self._tensors: dict[str, list[BaseTensor]] = {}
        self._alike: dict[tuple[str, int], _Alike] = {}
        for path, stored in files.items():
            stored.use_base(older, path)
            for tensor in stored.tensors.values():
                self._tensors.setdefault(tensor.name, []).append(BaseTensor(path, stored, tensor))
        # A relative tensor takes no room in a file, so it makes none for others.
        self.nbytes = sum(base.nbytes for base in self.tensors() if base.has_own_bytes())
        self.nbytes += 0 if older is None else older.nbytes
        self.num_relative_nbytes = 0
        self._num_read_nbytes = 0
        for base in reversed(self.tensors()):
            self._alike.setdefault((base.dtype, base.nbytes), _Alike([], {})).rest.append(base)

    def links(self) -> Iterator[Base]:
        """This one and the older ones, newest first."""
        link: Base | None = self
        while link is not None:
            yield link
            link = link.older

    def match(
        self,
        file: str,
        name: str,
        dtype: str,
        nbytes: int,
        hash_of: Callable[[], str] | None = None,
        threads: int | None = None,
    ) -> BaseTensor | None:
        """What a tensor of a file is to be relative to: one of the same dtype and size, by its name or by its content;
        never one of an older base.

        If several have its name, that is the one in a file of the same relative path, else the first. If none has,
        it is the first of the same content; `hash_of` gives that content's hash, and None looks for no such one.
        """
        for base in self._named(file, name):
            if (base.dtype, base.nbytes) == (dtype, nbytes):
                return base
        alike = self._alike.get((dtype, nbytes))
        if alike is None or hash_of is None:
            return None
        hashed = hash_of()
        while hashed not in alike.hashed and alike.rest:
            base = alike.rest.pop()
            alike.hashed.setdefault(base.hash(threads), base)
        return alike.hashed.get(hashed)

    def find(
        self, file: str, name: str, info: FrameInfo, *, called: str | None, threads: int | None, verify: bool
    ) -> BaseTensor:
        """The base of a frame by its name, in this base or else in an older one, and that tensor's own bases. With
        `verify` it is the first one of this name that has the right content. `called` is what the whole base was called
        when the frame was made.

        Raises:
            BaseMismatchError: there is none.
            LimitExceededError: a base claims more than it may be relative to.
        """
        named = [base for link in self.links() for base in link._named(file, name)]
        fitting = [base for base in named if base.nbytes == info.uncompressed_nbytes]
        for base in fitting:
            if not verify or base.hash(threads) == info.base_hash:
                base.find_own_base(threads=threads, verify=verify)
                return base
        raise self._mismatch(name, info, named, fitting, called)

    def _mismatch(
        self,
        name: str,
        info: FrameInfo,
        named: Sequence[BaseTensor],
        fitting: Sequence[BaseTensor],
        called: str | None,
    ) -> BaseMismatchError:
        """The error for a frame whose base is none of its name, not even of those of its size."""
        hashes = [base.known_hash for base in fitting]
        if not named:
            places = [str(link.root or ArrayFile.path) for link in self.links()]
            text = f"{' and '.join(places)} {'has' if len(places) == 1 else 'have'} no tensor of this name"
        else:
            found = zip(fitting, hashes, strict=True) if fitting else ((base, f"{base.nbytes} bytes") for base in named)
            text = " and ".join(f"the one in {str(base.stored.path)!r} has {what}" for base, what in found)
        found_hash = info.content_hash if info.content_hash in hashes else None
        advice = self.advice + (f"; the base was called {shown(called)}" if called else "")
        return base_mismatch(info, text, found_hash=found_hash, name=shown(name), advice=advice)

    def has_room(self, nbytes: int) -> bool:
        """Whether a tensor of so many bytes may be made relative to this base too; if so it is counted."""
        if self.num_relative_nbytes + nbytes > MAX_RELATIVE * self.nbytes:
            return False
        self.num_relative_nbytes += nbytes
        return True

    def count_read(self, nbytes: int) -> None:
        """Count a relative tensor of so many bytes that is to be read with this base.

        Raises:
            LimitExceededError: all of them together are more than what `has_room` permits.
        """
        found = self._num_read_nbytes + nbytes
        if found > MAX_RELATIVE * self.nbytes:
            raise LimitExceededError(
                f"expected relative tensors of at most {MAX_RELATIVE} times the {self.nbytes} bytes of the base, "
                f"got {found} bytes or more",
                advice="give the whole base; if this is the whole, the file is forged",
            )
        self._num_read_nbytes = found

    def tensors_hash(self, threads: int | None) -> str:
        """The identity of all its tensors."""
        return identity((base.name, base.dtype, base.shape, base.hash(threads)) for base in self.tensors())

    def tensors(self) -> list[BaseTensor]:
        """All tensors, those of one name beside each other."""
        return [base for named in self._tensors.values() for base in named]

    def names(self) -> set[str]:
        """The names of all tensors."""
        return set(self._tensors)

    def paths(self) -> list[Location]:
        """Where its files are, and those of older ones."""
        return [stored.path for link in self.links() if link.root is not None for stored in link.files.values()]

    def roots(self) -> list[Location]:
        """The files and directories, its own and those of older ones."""
        return [link.root for link in self.links() if link.root is not None]

    def check_unchanged(self) -> None:
        """Raise OSError if a file was written to since it was opened."""
        for stored in self.files.values():
            stored.file.check_unchanged()

    def close(self) -> None:
        """Close its files, and those of older ones."""
        for link in self.links():
            for stored in link.files.values():
                stored.close()

    def _named(self, file: str, name: str) -> list[BaseTensor]:
        """All tensors of a name; the one in a file of the same relative path first."""
        return sorted(self._tensors.get(name, ()), key=lambda base: base.file != file)
