"""Writes a compressed safetensors file, tensor by tensor, in bounded memory.

Frames come first, each a multiple of 32 bytes, so that all are aligned; then the tensors that gain nothing, plain,
widest dtypes first, so that each is aligned to its element. The header is reserved from the worst case and written at
the end.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .._ground.allocation import new_buffer
from .._ground.copies import not_copied
from ..codec import ContentHasher, FrameEncoder, content_hash, dtype_bits, same_frame
from ..errors import ErrorContext, LimitExceededError
from ..storage.pipeline import WINDOW_NBYTES, Worker, one_byte, read_windows
from .base import MAX_RELATIVE
from .files_before import MIN_BESIDE_NBYTES
from .frame_file import NO_HASH, compressed_entries, compressed_header, compressed_metadata
from .header import MAX_HEADER_NBYTES, TensorEntry, build_header
from .names import BESIDE, MARKER_DTYPE, REQUIRED_KEY, payload_name, shown
from .reader import BASE_HASH_KEY, BASE_NAME_KEY, BASE_PREFIX, BESIDE_PREFIX, CHECKSUM_KEY, HASH_PREFIX, PATH_KEY

if TYPE_CHECKING:
    from ..codec import Profile
    from ..storage.pipeline import Chunk, Window
    from ..storage.readable import Writable
    from .base import Base, BaseTensor
    from .base_content import Place
    from .files_before import FilesBefore

_MIN_GAIN_NBYTES = 256
"""A frame must save this much, or the tensor stays plain: about what its second entry in the header costs."""

_BUFFER_NBYTES = WINDOW_NBYTES + (WINDOW_NBYTES >> 2)
"""Room for the blocks of a window and for the largest block, which may have begun in the window before."""
_NUM_BUFFERS = 3
_MAX_ATTEMPTS = 3
"""How often a file is written of whose bases some are always lost, before all are left out."""


def may_save(dtype: str, nbytes: int) -> bool:
    """Whether a tensor is encoded at all. What a dtype of the future takes per element is not known."""
    return dtype_bits(dtype) > 0 and nbytes > _MIN_GAIN_NBYTES


def saves(frame_nbytes: int, nbytes: int) -> bool:
    """Whether a tensor of `nbytes` is stored as its frame."""
    return frame_nbytes + _MIN_GAIN_NBYTES <= nbytes


class Coding(NamedTuple):
    """How tensors are coded.

    Attributes:
        base: what tensors are relative to that have one of the same dtype and size there: of the same name, or of the
            same content.
        before: what they may be relative to in other files of their directory; not together with `base`.
    """

    profile: Profile
    threads: int | None
    base: Base | None = None
    before: FilesBefore | None = None


class Written(NamedTuple):
    """What became of the tensors of a file.

    Attributes:
        nbytes, data_nbytes: sizes of the file and of its data.
        compressed, relative: the names of those that are frames, and of those that are relative frames.
        sizes: bytes of data by the name of each tensor, in the order in which they were given.
        changed: the names of those that are plain and had another content when they were read again, which is the one
            that was written and hashed.
        lost_bases: the indices of those whose base has another content in the end than it had when it was read. If
            there are any, the file is not whole: write it again without these bases.
        sha256: of the original, where there is one.
        checksum: of the header.
        notice: what the user has to know of the bases.
    """

    nbytes: int
    data_nbytes: int
    compressed: frozenset[str]
    relative: frozenset[str]
    sizes: Mapping[str, int] = {}
    changed: frozenset[str] = frozenset()
    lost_bases: frozenset[int] = frozenset()
    sha256: str = ""
    checksum: str = ""
    notice: str | None = None


class CompressedWriter:
    """Takes the content of tensors in order, writes a compressed file.

    Use it in a ``with`` statement: `put` all content, then `finish`. One thread at a time.
    """

    __reduce_ex__ = not_copied("a file that it writes", "write it in one place")

    def __init__(
        self,
        file: Writable,
        tensors: Sequence[TensorEntry],
        metadata: Mapping[str, str],
        coding: Coding,
        bases: Mapping[int, BaseTensor],
        unit: Callable[[int], int] = one_byte,
    ) -> None:
        """
        Args:
            tensors: in the order of their content; their names do not collide, their offsets do not matter.
            bases: by the index of a tensor what that one is relative to; others are stored without a base.
            unit: that of `plan_windows`, by which the content is cut that is put.

        Raises:
            LimitExceededError: the header would be too long.
        """
        self._tensors = tensors
        self._coding = coding
        hashes = dict.fromkeys((tensor.name for tensor in tensors), NO_HASH)
        self._metadata = {**metadata, **compressed_metadata(coding.profile, hashes)}
        self._bases = bases
        self._unit = unit
        self._relative: dict[int, str] = {}  # with the hash of the base
        if coding.base is not None and coding.base.name and bases:
            self._metadata[BASE_NAME_KEY] = coding.base.name
        self._required = self._metadata.get(REQUIRED_KEY, "")
        self._equal: set[int] = set()  # those that are relative to a tensor with the same content
        self._uses: Counter[Place] = Counter()
        for index, found in bases.items():
            if coding.before is not None:
                self._set_beside(index, (found.file, found.name))
            elif found.name != tensors[index].name:
                self._metadata[BASE_PREFIX + tensors[index].name] = found.name
        self._data_start = self._worst_header({**self._metadata, **self._most_beside()})
        self._output = _Output(file, self._data_start)
        self._frames: dict[str, int] = {}  # their sizes, one behind the other
        self._plain: list[tuple[int, TensorEntry]] = []
        self._small: dict[int, bytes] = {}  # content that no frame makes smaller, and that is not read again
        self._encoder: FrameEncoder | None = None
        self._hasher = ContentHasher(threads=1)
        self._base_data: Iterator[memoryview] = iter(())
        self._stack = ExitStack()

    def _most_beside(self) -> dict[str, str]:
        """The longest that can be said of other files."""
        before = self._coding.before
        found = {} if before is None else before.longest(self._tensors)
        if before is None or not found:
            return {}
        most = {PATH_KEY: before.path, REQUIRED_KEY: f"{self._required} {BESIDE}"}
        for name, (file, in_base) in found.items():
            most |= {BESIDE_PREFIX + name: file, BASE_PREFIX + name: in_base}
        return most

    def _worst_header(self, metadata: Mapping[str, str]) -> int:
        """The most bytes that the file up to its data can take with this metadata."""
        bound = sum(tensor.nbytes + (tensor.nbytes >> 6) + 4096 for tensor in self._tensors)
        entries = []
        for tensor in self._tensors:
            entries.append(TensorEntry(payload_name(tensor.name), "U8", (bound,), bound, bound))
            # The marker, or the tensor itself, whichever is longer.
            dtype = max(tensor.dtype, MARKER_DTYPE, key=len)
            entries.append(TensorEntry(tensor.name, dtype, (*tensor.shape, 0), bound, bound))
        return build_header(metadata, entries).data_start

    def _set_beside(self, index: int, place: Place) -> None:
        """Say of a tensor which one of another file it is relative to."""
        (file, in_base), name = place, self._tensors[index].name
        self._metadata[BESIDE_PREFIX + name], self._metadata[BASE_PREFIX + name] = file, in_base

    def put(self, index: int, start: int, data: memoryview) -> None:
        """Add the content of tensor `index` from byte `start` on: a window or all that is left."""
        tensor = self._tensors[index]
        if tensor.nbytes <= _MIN_GAIN_NBYTES:  # comes in one window
            self._small[index] = bytes(data)  # which is hashed: the tensor may be written to meanwhile
            self._metadata[HASH_PREFIX + tensor.name] = content_hash(self._small[index], threads=1)
            self._plain.append((index, tensor))
            return
        with ErrorContext(tensor=tensor.name):
            old = next(self._base_data) if index in self._bases else None
            if start == 0:
                self._begin(tensor, relative=old is not None)
            if self._encoder is None:
                self._hasher.update(data)
            else:
                room = self._output.room(self._encoder.data_bound(len(data)))
                self._output.advance(self._encoder.encode(data, room, base=old))
            if start + len(data) == tensor.nbytes:
                self._end(index, tensor)

    def _fill_base(self, chunk: Chunk, out: memoryview) -> None:
        if chunk.tensor in self._bases:
            self._bases[chunk.tensor].read(chunk.start, out, threads=self._coding.threads)

    def _read_bases(self, windows: Iterator[Window]) -> Iterator[memoryview]:
        """What the tensors that have bases are relative to, in the chunks in which their content is put."""
        for window in windows:
            yield from (data for chunk, data in window.split() if chunk.tensor in self._bases)
            window.release()

    def _begin(self, tensor: TensorEntry, *, relative: bool) -> None:
        self._start = self._output.position
        self._encoder = None
        if not may_save(tensor.dtype, tensor.nbytes):
            self._hasher = ContentHasher(threads=self._coding.threads)
            return
        self._encoder = FrameEncoder(
            tensor.dtype, tensor.shape, profile=self._coding.profile, relative=relative, threads=self._coding.threads
        )  # fmt: skip
        self._output.skip(self._encoder.header_nbytes)

    def _end(self, index: int, tensor: TensorEntry) -> None:
        encoder = self._encoder
        if encoder is None:
            self._metadata[HASH_PREFIX + tensor.name] = self._hasher.hexdigest()
            self._plain.append((index, tensor))
            return
        header = encoder.finish()
        info = encoder.info
        self._metadata[HASH_PREFIX + tensor.name] = info.content_hash
        if self._end_beside(index, tensor, encoder):
            return
        if not saves(info.frame_nbytes, tensor.nbytes):
            self._output.rewind(self._start)
            self._plain.append((index, tensor))
            return
        if info.base_hash is not None:
            self._relative[index] = info.base_hash
            if len(header) < encoder.header_nbytes:  # nothing differs from the base: there is no index, and no block
                self._output.rewind(self._start)
                self._output.skip(len(header))
        self._output.patch(self._start, header)
        self._frames[tensor.name] = info.frame_nbytes
        self._encoder = None

    def _end_beside(self, index: int, tensor: TensorEntry, encoder: FrameEncoder) -> bool:
        """Put a frame into the place of the one that was encoded, which says that another file has the same content, if
        one has. Returns whether that is so."""
        before, info = self._coding.before, encoder.info
        place = None if before is None else before.equal(info.content_hash)
        if place is None or self._uses[place] == MAX_RELATIVE:
            return False
        frame = same_frame(encoder)
        gain = MIN_BESIDE_NBYTES if info.base_hash is None else 1  # one that is relative needs another file anyway
        if len(frame) + gain > min(info.frame_nbytes, tensor.nbytes):
            return False
        self._uses[place] += 1
        self._set_beside(index, place)
        self._equal.add(index)
        self._relative[index] = info.content_hash
        self._frames[tensor.name] = len(frame)
        self._output.rewind(self._start)
        self._output.skip(len(frame))
        self._output.patch(self._start, frame)
        self._encoder = None
        return True

    def set_metadata(self, key: str, text: str) -> None:
        """Replace a value that was given at first; the new one must not be longer."""
        self._metadata[key] = text

    def _relative_names(self) -> frozenset[str]:
        return frozenset(self._tensors[index].name for index in self._relative)

    def _drop_unused(self) -> None:
        """Forget what the header would say of the bases of tensors that are stored without one."""
        if not self._relative:
            for key in (BASE_NAME_KEY, BASE_HASH_KEY):
                self._metadata.pop(key, None)
        relative = self._relative_names()
        for prefix in (BASE_PREFIX, BESIDE_PREFIX):
            for key in [key for key in self._metadata if key.startswith(prefix)]:
                name = key.removeprefix(prefix)
                if name not in relative or (prefix == BASE_PREFIX and self._metadata[key] == name):
                    del self._metadata[key]
        if self._coding.before is not None and relative:
            self._metadata[PATH_KEY] = self._coding.before.path
            self._metadata[REQUIRED_KEY] = f"{self._required} {BESIDE}".strip()

    def finish(self, read: Callable[[int, int, memoryview], None]) -> Written:
        """Write the plain tensors and the header.

        ``read(index, start, out)`` puts content of tensor `index` from byte `start` on into `out`.
        """
        own = self._relative.items() - {(index, self._relative[index]) for index in self._equal}
        lost = {i for i, found in own if not self._bases[i].still_has(found, self._coding.threads)}
        if lost:
            return Written(0, 0, frozenset(), frozenset(), lost_bases=frozenset(lost))
        plain = {tensor.name: (index, tensor) for index, tensor in self._plain}
        entries = compressed_entries(self._frames, ((each.name, *each[1:3], each.nbytes) for _, each in self._plain))
        changed = set()
        for index, tensor in (plain[entry.name] for entry in entries[len(self._frames) :]):
            if index in self._small:
                self._output.room(tensor.nbytes)[:] = self._small[index]
                self._output.advance(tensor.nbytes)
            elif not self._write_again(index, tensor, read):
                changed.add(tensor.name)
        nbytes = self._output.position
        self._drop_unused()
        header = compressed_header(self._metadata, self._frames, entries, self._data_start)
        self._output.finish(header.prefix)
        assert header.metadata is not None
        return Written(
            nbytes,
            nbytes - self._data_start,
            frozenset(self._frames),
            self._relative_names(),
            {tensor.name: self._frames.get(tensor.name, tensor.nbytes) for tensor in self._tensors},
            changed=frozenset(changed),
            checksum=header.metadata[CHECKSUM_KEY],
        )

    def _write_again(self, index: int, tensor: TensorEntry, read: Callable[[int, int, memoryview], None]) -> bool:
        """Write the content of a plain tensor, which is read again, and note its hash. Returns whether it is what it
        was."""
        hasher = ContentHasher(threads=self._coding.threads)
        for start in range(0, tensor.nbytes, WINDOW_NBYTES):
            room = self._output.room(min(WINDOW_NBYTES, tensor.nbytes - start))
            with ErrorContext(tensor=tensor.name):
                read(index, start, room)
            hasher.update(room)
            self._output.advance(len(room))
        key = HASH_PREFIX + tensor.name
        before, self._metadata[key] = self._metadata[key], hasher.hexdigest()
        return before == self._metadata[key]

    def __enter__(self) -> CompressedWriter:
        with ExitStack() as stack:
            stack.enter_context(self._output.worker)
            if self._bases:
                sizes = [tensor.nbytes if i in self._bases else 0 for i, tensor in enumerate(self._tensors)]
                self._base_data = self._read_bases(
                    stack.enter_context(read_windows(sizes, self._fill_base, unit=self._unit))
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


class _Output:
    """A file that is appended to through a few large buffers, which a thread writes out.

    Attributes:
        worker: that thread.
        position: offset in the file of the next byte.
    """

    __reduce_ex__ = not_copied("a file that it writes", "write it in one place")

    def __init__(self, file: Writable, position: int) -> None:
        self.worker = Worker("write")
        self._file = file
        self._base = position
        self._fill = 0
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(_NUM_BUFFERS):
            self._free.put(new_buffer(_BUFFER_NBYTES))
        self._buffer = self._free.get()

    @property
    def position(self) -> int:
        return self._base + self._fill

    def room(self, nbytes: int) -> memoryview:
        """Memory for the next `nbytes` bytes, at most the size of a buffer."""
        if nbytes > len(self._buffer) - self._fill:
            self._flush()
        return self._buffer[self._fill : self._fill + nbytes]

    def advance(self, nbytes: int) -> None:
        """The first `nbytes` bytes of the room are there."""
        self._fill += nbytes

    def skip(self, nbytes: int) -> None:
        """Leave `nbytes` bytes to be patched."""
        if nbytes > len(self._buffer) - self._fill:
            self._flush()
        if nbytes > len(self._buffer):
            self._base += nbytes
        else:
            self._fill += nbytes

    def patch(self, position: int, data: bytes) -> None:
        if position >= self._base:
            start = position - self._base
            self._buffer[start : start + len(data)] = data
        else:
            self.worker.submit(self._file.write, position, data)

    def rewind(self, position: int) -> None:
        """Forget what comes after `position`; what has been written there will be written over or cut off."""
        if position >= self._base:
            self._fill = position - self._base
        else:
            self._base, self._fill = position, 0

    def finish(self, header: bytes) -> None:
        """Put the header in front, and let the file end here."""
        self._flush()
        self.worker.submit(self._file.write, 0, header)
        self.worker.submit(self._file.truncate, self._base)

    def _flush(self) -> None:
        if self._fill:
            buffer = self._buffer
            self.worker.submit(self._file.write, self._base, buffer[: self._fill], done=lambda: self._free.put(buffer))
            self._base += self._fill
            self._fill = 0
            self._buffer = self._free.get()


def check_names(tensors: Sequence[TensorEntry]) -> None:
    """Look at the names of tensors that are to be compressed, before anything costs time.

    Raises:
        ValueError: a tensor has a name that another one's payload needs.
        LimitExceededError: they do not fit into a header, where each may stand three times: its payload, its marker,
            and its hash.
    """
    least = 3 * sum(len(tensor.name) for tensor in tensors)
    if least > MAX_HEADER_NBYTES:
        raise LimitExceededError(
            f"expected names that fit into a header of {MAX_HEADER_NBYTES} bytes, which these need {least} of or more",
            advice="spread the tensors over several files",
        )
    names = {tensor.name for tensor in tensors}
    for tensor in tensors:
        payload = payload_name(tensor.name)
        if payload in names:
            raise ValueError(
                f"tensor {shown(payload)} has the name that the payload of {shown(tensor.name)} needs; rename it"
            )


def write_with_bases(
    bases: Mapping[int, BaseTensor],
    tensors: Sequence[TensorEntry],
    write: Callable[[Mapping[int, BaseTensor]], Written],
) -> Written:
    """``write(bases)``, and again without those that are lost: a frame that is relative to what its base was for a
    moment could not be decompressed. A notice tells of them."""
    lost: frozenset[int] = frozenset()
    for _ in range(_MAX_ATTEMPTS):
        written = write({index: base for index, base in bases.items() if index not in lost})
        if not written.lost_bases:
            break
        lost |= written.lost_bases
    else:
        lost = frozenset(bases)
        written = write({})
    if not lost:
        return written
    first = shown(tensors[min(lost)].name)
    others = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return written._replace(notice=f"stored without a base, which changed while it was read: {first}{others}")


def match_bases(
    coding: Coding, tensors: Sequence[TensorEntry], file: str, hash_of: Callable[[int], str]
) -> dict[int, BaseTensor]:
    """What each tensor of a file is relative to, by its index; those without a fitting base, or for which the base has
    no room, are left out.

    Args:
        file: relative path of the file, by which tensors of one name are told apart.
        hash_of: the content hash of a tensor by its index, as `Base.match` takes it.
    """
    bases: dict[int, BaseTensor] = {}
    for index, tensor in enumerate(tensors):
        if may_save(tensor.dtype, tensor.nbytes):
            found = _match(coding, tensor, file, partial(hash_of, index))
            if found is not None:
                bases[index] = found
    return bases


def _match(coding: Coding, tensor: TensorEntry, file: str, hash_of: Callable[[], str]) -> BaseTensor | None:
    base = coding.base
    if base is None:
        return None if coding.before is None else coding.before.older_tensor(tensor)
    found = base.match(file, tensor.name, tensor.dtype, tensor.nbytes, hash_of, coding.threads)
    return found if found is not None and base.has_room(tensor.nbytes) else None
