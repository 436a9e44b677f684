"""The base of a checkpoint: the tensors of another one, plain or compressed, that its frames are relative to."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, NamedTuple

from ...codec import ContentHasher, content_hash, new_buffer
from ...errors import BaseMismatchError, CorruptDataError, ErrorContext
from ..storage.pipeline import WINDOW_NBYTES
from .names import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ...codec import FrameInfo
    from .reader import StoredFile, StoredTensor


class BaseTensor:
    """A tensor of the base. Thread-safe.

    Attributes:
        name, dtype, shape, nbytes: of its content.
        file: relative path of the file that holds it.
        stored: that file.
    """

    def __init__(self, file: str, stored: StoredFile, tensor: StoredTensor) -> None:
        self.name = tensor.name
        self.file = file
        self.stored = stored
        self.dtype, self.shape, self.nbytes = stored.layout(tensor.name)
        self._tensor = tensor
        self._lock = threading.Lock()
        self._hash: str | None = None
        if tensor.compressed:  # the header of its frame has a checksum, and each block is checked when it is read
            self._hash = stored.frame(tensor).info.content_hash
            stored.forget(tensor)

    def read(self, start: int, out: memoryview, *, threads: int | None) -> None:
        """Put content bytes from `start` on into `out`."""
        with ErrorContext(file=self.stored.path, tensor=self.name):
            self.stored.read(self._tensor, start, out, threads=threads)

    def hash(self, threads: int | None) -> str:
        """The content hash. That of a plain tensor takes a read of all of it, once."""
        with self._lock:
            if self._hash is None:
                hasher = ContentHasher(threads=threads)
                buffer = new_buffer(min(WINDOW_NBYTES, self.nbytes))
                for start in range(0, self.nbytes, WINDOW_NBYTES):
                    chunk = buffer[: min(WINDOW_NBYTES, self.nbytes - start)]
                    self.read(start, chunk, threads=threads)
                    hasher.update(chunk)
                self._hash = hasher.hexdigest()
            return self._hash

    def set_hash(self, found: str) -> None:
        """What somebody else found who has read all of it.

        Raises:
            CorruptDataError: it is not the hash that was found before, or that the header of a frame claims.
        """
        with self._lock:
            if self._hash not in (None, found):
                raise CorruptDataError(
                    f"expected content with hash {self._hash}, got {found}",
                    file=self.stored.path,
                    tensor=self.name,
                    advice="the base changed while it was read, or is damaged: try again, then fetch it again",
                )
            self._hash = found


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
    """

    def __init__(self, root: Path, name: str, files: Mapping[str, StoredFile]) -> None:
        """Raises ValueError if the base is itself relative to another one."""
        self.root = root
        self.name = name
        self.files = files
        self._tensors: dict[str, list[BaseTensor]] = {}
        self._layouts: dict[tuple[str, int], _Layout] = {}
        for path, stored in files.items():
            for tensor in stored.tensors.values():
                if tensor.compressed and stored.frame(tensor).info.base_hash is not None:
                    raise ValueError(
                        f"{root} is relative to a base itself; decompress it first, and give the result as base"
                    )
                self._tensors.setdefault(tensor.name, []).append(BaseTensor(path, stored, tensor))
        for base in reversed(self._all()):
            self._layouts.setdefault((base.dtype, base.nbytes), _Layout([], {})).rest.append(base)

    def match(self, file: str, name: str, dtype: str, nbytes: int) -> BaseTensor | None:
        """What a tensor of a file is to be relative to by its name: one of the same dtype and size.

        Of several the one in a file of the same relative path, else the first. None if there is none.
        """
        found = [base for base in self._candidates(file, name) if (base.dtype, base.nbytes) == (dtype, nbytes)]
        return found[0] if found else None

    def match_content(self, dtype: str, nbytes: int, hashed: str, threads: int | None) -> BaseTensor | None:
        """The first tensor of this dtype and size with this content hash, whatever its name; None if there is none."""
        layout = self._layouts.get((dtype, nbytes))
        if layout is None:
            return None
        while hashed not in layout.hashed and layout.rest:
            base = layout.rest.pop()
            layout.hashed.setdefault(base.hash(threads), base)
        return layout.hashed.get(hashed)

    def may_match_content(self, dtype: str, nbytes: int) -> bool:
        """Whether there is a tensor of this dtype and size at all."""
        return (dtype, nbytes) in self._layouts

    def find(self, file: str, name: str, info: FrameInfo, *, threads: int | None, verify: bool) -> BaseTensor:
        """The base of a frame by its name. With `verify` it is the one of this name that has the right content.

        Raises:
            BaseMismatchError: there is none.
        """
        named = self._candidates(file, name)
        needs = f"expected a base {shown(name)} of {info.uncompressed_nbytes} bytes with content hash {info.base_hash}"
        if not named:
            raise BaseMismatchError(f"{needs}, {self.root} has no tensor of this name")
        found = [base for base in named if base.nbytes == info.uncompressed_nbytes]
        if not found:
            raise BaseMismatchError(f"{needs}, the one in {str(named[0].stored.path)!r} has {named[0].nbytes} bytes")
        if not verify:
            return found[0]
        for base in found:
            if base.hash(threads) == info.base_hash:
                return base
        text = f"{needs}, the one in {str(found[0].stored.path)!r} has {found[0].hash(threads)}"
        if any(base.hash(threads) == info.content_hash for base in found):
            text += ", which is what the frame makes of its base: it was applied already"
        raise BaseMismatchError(text)

    def tensors_hash(self, threads: int | None) -> str:
        """The content hash of a list of all tensors: docs/checkpoints.md, "Identity"."""
        return tensors_hash((base.name, base.dtype, base.shape, base.hash(threads)) for base in self._all())

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

    def _all(self) -> list[BaseTensor]:
        return [base for named in self._tensors.values() for base in named]

    def _candidates(self, file: str, name: str) -> list[BaseTensor]:
        """All tensors of a name; the one in a file of the same relative path first."""
        return sorted(self._tensors.get(name, ()), key=lambda base: base.file != file)


def tensors_hash(tensors: Iterable[tuple[str, str, tuple[int, ...], str]]) -> str:
    """The content hash of the JSON of a sorted list of name, dtype, shape and content hash of each tensor."""
    return content_hash(json.dumps(sorted(tensors), separators=(",", ":")).encode(), threads=1)
