"""Tensors out of the files of versions: what a follower fetches and applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from .._ground.allocation import new_buffer
from ..codec import FrameReader, base_mismatch, check_frame_size, content_hash, decompress
from ..errors import CorruptDataError, ErrorContext, FormatError
from ..files.names import shown
from ..storage.progress import Meter
from .versions import Tensor, nbytes_of

if TYPE_CHECKING:
    from ..files.reader import StoredFile
    from ..storage.progress import Progress
    from .small_files import SmallFile
    from .store import Store
    from .versions import Tensors, Version


_PIECE_NBYTES = 2 << 20
"""What a thread makes at once: little enough for the caches, and enough that calls cost little beside the work."""
_MAX_OPEN = 64
"""Files that are open at once; a long chain has one a version, and an anchor of a large model thousands."""


class Fetched(NamedTuple):
    """What makes a tensor, of the one before it or of nothing.

    Attributes:
        data: a frame, or without one the content.
        frame: reads it; None if `data` is the content.
        tensor: what comes out.
        file: it is from, for errors.
    """

    data: memoryview
    frame: FrameReader | None
    tensor: Tensor
    file: object

    @property
    def is_relative(self) -> bool:
        return self.frame is not None and self.frame.info.base_hash is not None

    def make(self, name: str, out: memoryview, base: memoryview | None, threads: int) -> None:
        """Put the tensor into memory of ours, which may be that of `base` and is of no use after an error.

        The hash of the result is checked. No other base gives it, so that of the base need not be.

        Raises:
            BaseMismatchError: `base` is not what the frame is relative to.
            FormatError: it is damaged, or another tensor comes out.
        """
        with ErrorContext(file=self.file, tensor=name):
            if self.frame is not None and self.is_relative and base is not None:
                self._decode(name, self.frame, out, base, threads)
                return
        self.put(name, out, threads)

    def make_piece(self, name: str, start: int, out: memoryview, threads: int) -> None:
        """Put the content from byte `start` on, whole blocks, into memory that holds the same bytes of the base.

        The hash of the whole is not known before its last piece: see `check`.

        Raises:
            BaseMismatchError, FormatError: as `make`.
        """
        if self.frame is None:
            out[:] = self.data[start : start + len(out)]
            return
        stop, base = start + len(out), (out, start) if self.is_relative else (None, 0)
        first, last = self.frame.data_range(start, stop)
        with ErrorContext(file=self.file, tensor=name):
            try:
                self.frame.decode(
                    self._blocks[first:last], out, start=start, stop=stop, data_offset=first,
                    base=base[0], base_offset=base[1], threads=threads,
                )  # fmt: skip
            except FormatError:
                if not self.is_relative:
                    raise
                self._blame_base(name)

    def check(self, name: str, found: str, *, had_base: bool) -> None:
        """Raise the error that says why the content has another hash."""
        with ErrorContext(file=self.file, tensor=name):
            if found != self.tensor.hash and had_base:
                self._blame_base(name)
            if found != self.tensor.hash:
                raise CorruptDataError(f"expected content with hash {self.tensor.hash}, got {found}")

    def put(self, name: str, data: memoryview, threads: int) -> None:
        """Change memory in place. Nothing is written if it holds another base; other errors are those of `make`."""
        with ErrorContext(file=self.file, tensor=name):
            if self.frame is None:
                data[:] = self.data
            elif self.is_relative:
                decompress(self.data, base=data, out=data, threads=threads)
                return  # the result is checked
            else:
                decompress(self.data, out=data, threads=threads)
        self.check(name, content_hash(data, threads=threads), had_base=False)

    def _decode(self, name: str, frame: FrameReader, out: memoryview, base: memoryview, threads: int) -> None:
        try:
            found, _ = frame.decode_and_hash(self._blocks, out, base=base, hash_base=False, threads=threads)
        except FormatError:
            found = ""
        self.check(name, found, had_base=True)

    @property
    def _blocks(self) -> memoryview:
        assert self.frame is not None
        info = self.frame.info
        return self.data[info.header_nbytes : info.header_nbytes + info.data_nbytes]

    def _blame_base(self, name: str) -> NoReturn:
        """Unless a block is damaged, the base is another one."""
        assert self.frame is not None
        self.frame.check_blocks(self._blocks)
        raise base_mismatch(self.frame.info, "got another one", name=shown(name))


def piece_nbytes(frames: Sequence[Fetched], threads: int) -> int:
    """How much of a tensor to make at once, by all of its frames: whole blocks of each."""
    block = lcm(*(each.frame.block_nbytes for each in frames if each.frame is not None))
    return max(threads * _PIECE_NBYTES // block, 1) * block


class Frames:
    """The files of versions, opened when they are needed. Use it in a ``with`` statement.

    Attributes:
        plan: by name the versions that will be asked for.
        small: the small files of the last one.
    """

    def __init__(
        self,
        store: Store,
        plan: Mapping[str, Sequence[Version]],
        held: Tensors = MappingProxyType({}),
        small: Mapping[str, SmallFile] = MappingProxyType({}),
        progress: Progress | None = None,
    ) -> None:
        """`held` is what `plan` begins with; `progress` counts what the frames make, uncompressed."""
        self._store, self.plan, self.small = store, plan, small
        sizes = (nbytes_of(link.tensors[name]) for name, links in plan.items() for link in links)
        self._meter = Meter(progress, sum(sizes))
        self._first = {
            (name, links[0].number)
            for name, links in plan.items()
            if links and (name not in held or held[name].layout != links[0].tensors[name].layout)
        }  # what has no base at hand
        self._wanted: dict[tuple[int, str], list[str]] = {}
        for name, links in plan.items():
            for link in links:
                self._wanted.setdefault((link.number, link.homes[name]), []).append(name)
        self._files: dict[tuple[int, str], StoredFile] = {}  # the one that was asked for last comes last

    def fetch(self, name: str, version: Version) -> Fetched:
        """The bytes of a tensor in a version.

        Raises:
            CorruptDataError: the file is not the one that the index tells of, or has a relative frame where nothing can
                be its base, which alone bounds what such a frame claims.
        """
        expected, file = version.tensors[name], version.homes[name]
        self._meter.begin(name, nbytes_of(expected))
        stored = self._open(version, file)
        with ErrorContext(file=stored.path, tensor=name):
            tensor = stored.tensors.get(name)
            if tensor is None:
                raise CorruptDataError("the index says that the tensor is in this file, which does not hold it")
            data = new_buffer(tensor.entry.nbytes)
            stored.file.read_into(stored.header.data_start + tensor.entry.start, data)
            frame = FrameReader(data) if tensor.compressed else None
            found = Tensor(tensor.entry.dtype, tensor.entry.shape, tensor.content_hash or "")
            if frame is not None:
                check_frame_size(frame.info, len(data))
                found = Tensor(frame.info.dtype, frame.info.shape, frame.info.content_hash)
            if found != expected:
                raise CorruptDataError(f"expected {expected}, as the index says, got {found}")
            has_base = version.base is not None and (name, version.number) not in self._first
            if frame is not None and frame.info.base_hash is not None and not has_base:
                text = "expected a plain frame in an anchor, or of a tensor that is new or has another dtype or shape"
                raise CorruptDataError(f"{text}, got a relative one", advice="publish an anchor")
        self._meter.end()
        return Fetched(data, frame, expected, stored.path)

    def fetch_small(self, name: str) -> bytes:
        """A small file.

        Raises:
            CorruptDataError: it is not the one that the index tells of.
        """
        return self._store.read_small(self.small[name])

    def apply(self, name: str, links: Sequence[Version], data: memoryview, threads: int) -> None:
        """Change a tensor of ours by what versions hold of it, one after the other. It is of no use after an error."""
        for link in links:
            self.fetch(name, link).make(name, data, data, threads)

    def _open(self, version: Version, file: str) -> StoredFile:
        key = version.number, file
        stored = self._files.pop(key, None)
        if stored is None:
            if len(self._files) == _MAX_OPEN:
                self._files.pop(next(iter(self._files))).close()
            stored = self._store.open(version, file)
            stored.expect([stored.tensors[name] for name in self._wanted[key] if name in stored.tensors])
        self._files[key] = stored
        return stored

    def __enter__(self) -> Frames:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._meter.finish()
        for stored in self._files.values():
            stored.close()
