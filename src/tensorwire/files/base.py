"""The base of a checkpoint: the tensors of another one, plain or compressed, that its frames are relative to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..codec import base_mismatch, content_hash
from ..errors import CorruptDataError, ErrorContext, LimitExceededError
from .names import shown

if TYPE_CHECKING:
    from ..codec import FrameInfo
    from .reader import StoredFile, StoredTensor


MAX_RELATIVE = 16
"""How many times as large as its base all that is relative to it may be: a frame that changes nothing is as small for
a large tensor as for a small one, so nothing but the base bounds what a file can claim."""


class BaseTensor:
    """A tensor of a base, or of what is compared to one. Thread-safe.

    Attributes:
        name, dtype, shape, nbytes: of its content.
        file: relative path of the file that holds it.
        stored: that file.
        tensor: what the file says of it.
        known_hash: its content hash; None as long as nobody knows it.
    """

    def __init__(self, file: str, stored: StoredFile, tensor: StoredTensor) -> None:
        self.name = tensor.name
        self.file = file
        self.stored = stored
        self.tensor = tensor
        self.dtype, self.shape, self.nbytes = stored.layout(tensor.name)
        self._lock = threading.Lock()
        self.known_hash: str | None = None
        if tensor.compressed:  # the header of its frame has a checksum, and each block is checked when it is read
            self.known_hash = stored.hash_content(tensor, None)
            stored.forget(tensor)

    def read(self, start: int, out: memoryview, *, threads: int | None) -> None:
        """Put content bytes from `start` on into `out`."""
        with ErrorContext(file=self.stored.path, tensor=self.name):
            self.stored.read(self.tensor, start, out, threads=threads)

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
            CorruptDataError: the header of a frame claims another one.
        """
        with self._lock:
            if not self.tensor.compressed:
                self.known_hash = self.stored.hash_content(self.tensor, threads)
            elif self.known_hash != content_hash:
                raise CorruptDataError(
                    f"expected content with hash {self.known_hash}, got {content_hash}",
                    file=self.stored.path,
                    tensor=self.name,
                    advice="the base is damaged: fetch it again",
                )
            return self.known_hash == content_hash


class _Layout(NamedTuple):
    """The tensors of one dtype and size: those whose content nobody has asked for, the first one last, and the first
    of each content hash."""

    rest: list[BaseTensor]
    hashed: dict[str, BaseTensor]


class Base:
    """All tensors of a base.

    Attributes:
        root: the file or directory, as a message names it.
        name: what it is called.
        files: its safetensors files by relative path, open.
        nbytes: of the content of all its tensors.
        num_relative_nbytes: of the tensors that were made relative to it so far.
    """

    def __init__(self, root: Path, name: str, files: Mapping[str, StoredFile]) -> None:
        self.root = root
        self.name = name
        self.files = files
        self._tensors: dict[str, list[BaseTensor]] = {}
        self._layouts: dict[tuple[str, int], _Layout] = {}
        for path, stored in files.items():
            for tensor in stored.tensors.values():
                self._tensors.setdefault(tensor.name, []).append(BaseTensor(path, stored, tensor))
        self.nbytes = sum(base.nbytes for base in self.tensors())
        self.num_relative_nbytes = 0
        self._num_read_nbytes = 0
        for base in reversed(self.tensors()):
            self._layouts.setdefault((base.dtype, base.nbytes), _Layout([], {})).rest.append(base)

    def match(
        self,
        file: str,
        name: str,
        dtype: str,
        nbytes: int,
        hash_of: Callable[[], str] | None = None,
        threads: int | None = None,
    ) -> BaseTensor | None:
        """What a tensor of a file is to be relative to: one of the same dtype and size, by its name or by its content.

        If several have its name, that is the one in a file of the same relative path, else the first. If none has,
        it is the first of the same content; `hash_of` gives that content's hash, and None looks for no such one.
        """
        for base in self._candidates(file, name):
            if (base.dtype, base.nbytes) == (dtype, nbytes):
                return base
        layout = self._layouts.get((dtype, nbytes))
        if layout is None or hash_of is None:
            return None
        hashed = hash_of()
        while hashed not in layout.hashed and layout.rest:
            base = layout.rest.pop()
            layout.hashed.setdefault(base.hash(threads), base)
        return layout.hashed.get(hashed)

    def find(self, file: str, name: str, info: FrameInfo, *, threads: int | None, verify: bool) -> BaseTensor:
        """The base of a frame by its name. With `verify` it is the one of this name that has the right content.

        Raises:
            BaseMismatchError: there is none.
        """
        named = self._candidates(file, name)
        if not named:
            raise base_mismatch(info, f"{self.root} has no tensor of this name", name=shown(name))
        found = [base for base in named if base.nbytes == info.uncompressed_nbytes]
        if not found:
            place = str(named[0].stored.path)
            raise base_mismatch(info, f"the one in {place!r} has {named[0].nbytes} bytes", name=shown(name))
        if not verify:
            return found[0]
        hashes = [base.hash(threads) for base in found]
        if info.base_hash in hashes:
            return found[hashes.index(info.base_hash)]
        # If there are several, the message is about the one that was changed already.
        index = hashes.index(info.content_hash) if info.content_hash in hashes else 0
        text = f"the one in {str(found[index].stored.path)!r} has {hashes[index]}"
        raise base_mismatch(info, text, found_hash=hashes[index], name=shown(name))

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
        """The content hash of the JSON of a sorted list of all tensors: docs/checkpoints.md, "Identity"."""
        tensors = sorted((base.name, base.dtype, base.shape, base.hash(threads)) for base in self.tensors())
        return content_hash(json.dumps(tensors, separators=(",", ":")).encode(), threads=1)

    def tensors(self) -> list[BaseTensor]:
        """All tensors, those of one name beside each other."""
        return [base for named in self._tensors.values() for base in named]

    def names(self) -> set[str]:
        """The names of all tensors."""
        return set(self._tensors)

    def paths(self) -> list[Path]:
        """Where its files are."""
        return [stored.path for stored in self.files.values()]

    def check_unchanged(self) -> None:
        """Raise OSError if a file was written to since it was opened."""
        for stored in self.files.values():
            stored.file.check_unchanged()

    def close(self) -> None:
        for stored in self.files.values():
            stored.close()

    def _candidates(self, file: str, name: str) -> list[BaseTensor]:
        """All tensors of a name; the one in a file of the same relative path first."""
        return sorted(self._tensors.get(name, ()), key=lambda base: base.file != file)
