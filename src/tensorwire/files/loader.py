"""The content of stored tensors into new memory, on all cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

from .._ground.allocation import new_buffer
from .._ground.copies import not_copied
from ..codec import check_max_nbytes, content_hash
from ..errors import ErrorContext, FormatError, LimitExceededError
from ..storage.pool import run_all

if TYPE_CHECKING:
    from .reader import StoredFile, StoredTensor

    Claim = tuple[object, str | None, int]
    """A file, a tensor of it (None: what the file has beside tensors), and how many bytes of content that is said to
    have."""

TASK_NBYTES = 4 << 20
"""About what a thread decodes at a time: whole blocks, small enough for its cache, enough to make calls cheap."""

_OWN_MEMORY_NBYTES = 1 << 20
"""A tensor from this size on has memory of its own, which is freed with it; smaller ones share some."""

_ALIGNMENT = 64

Verify = bool | Literal["load"]
"""Whether checksums are checked. If a weight stays compressed, its blocks are checked when they are first decoded, or,
with "load", before the loader returns. All other data is decoded while loading, and checked then."""

Task = Callable[[memoryview], None]
"""A part of a tensor's way into memory, with the scratch memory of the thread that it runs on."""


def check_verify(verify: object) -> None:
    """Raise ValueError for what is no `Verify`: a word might be meant to say no."""
    if not (isinstance(verify, bool) or verify == "load"):
        raise ValueError(f'expected verify to be True, False or "load", got {verify!r:.60}')


def check_room(claims: Iterable[Claim], max_nbytes: int | None) -> None:
    """Look at what tensors, and what else is to be written, claim before memory or a disk gives room for it: a frame of
    a few kilobytes may claim gigabytes.

    Raises:
        LimitExceededError: all of them together are larger than `max_nbytes`.
        TypeError, ValueError: `max_nbytes` is no number of bytes.
    """
    check_max_nbytes(max_nbytes)
    if max_nbytes is None:
        return
    total = 0
    for file, tensor, nbytes in claims:
        total += nbytes
        if total > max_nbytes:
            what = "file" if tensor is None else "tensor"
            text = f"a {what} of at most {max_nbytes} bytes, got one of {nbytes}"
            if nbytes <= max_nbytes:
                text = f"at most {max_nbytes} bytes together, got {total} with {nbytes} of this {what}"
            raise LimitExceededError(
                f"expected {text}",
                file=file,
                tensor=tensor,
                advice="allow a larger max_nbytes (--max-nbytes) if you trust the data",
            )


def claim(stored: StoredFile, tensor: StoredTensor) -> Claim:
    """What a tensor of a file claims."""
    return stored.path, tensor.name, stored.layout(tensor.name)[2]


def load_contents(
    stored: StoredFile, tensors: Sequence[StoredTensor], sizes: Sequence[int], threads: int, verify: bool
) -> list[memoryview]:
    """The content of tensors of these sizes; in memory aligned to 64 bytes, from 1 MiB on to a page.

    Raises:
        FormatError: the data is damaged.
        OSError: reading fails.
    """
    for tensor in tensors:  # whose frames are as large as their bases, if they have them
        if stored.is_relative(tensor):
            stored.base_of(tensor, threads=threads, verify=False)
    outs = _allocate(sizes)
    tasks: list[Task] = []
    for tensor, out in sorted(zip(tensors, outs, strict=True), key=lambda pair: pair[0].compressed):
        tasks += content_tasks(stored, tensor, out, verify)  # the long ones first
    with _naming_changes(stored):
        run_all(tasks, min(threads, len(tasks)), lambda: Scratch().memory, "tensorwire-load")
    for tensor, out in zip(tensors, outs, strict=True):
        if verify and stored.is_relative(tensor):  # the blocks of others have their checksums
            stored.check_hash(tensor, stored.recorded_hash(tensor), content_hash(out, threads=threads))
    return outs


@contextmanager
def _naming_changes(stored: StoredFile) -> Iterator[None]:
    """Where data is damaged, look whether the file was written to since it was opened: then OSError says that."""
    try:
        yield
    except FormatError:
        stored.file.check_unchanged()
        raise


def content_tasks(stored: StoredFile, tensor: StoredTensor, out: memoryview, verify: bool) -> list[Task]:
    """What puts the content of a tensor into memory of its size, in parts that threads may share."""
    step, nbytes = TASK_NBYTES, len(out)
    if tensor.compressed:
        block_nbytes = stored.frame(tensor).block_nbytes
        step = max(1, TASK_NBYTES // block_nbytes) * block_nbytes
    elif tensor.content_hash is not None:  # which is of all content, and of none too
        step = nbytes = max(1, len(out))

    def run(start: int, scratch: memoryview) -> None:
        part = out[start : start + step]
        with ErrorContext(file=stored.path, tensor=tensor.name):
            stored.read(tensor, start, part, threads=1, verify=verify, scratch=scratch)
            if verify and not tensor.compressed and tensor.content_hash is not None:
                stored.check_hash(tensor, tensor.content_hash, content_hash(part, threads=1))

    return [partial(run, start) for start in range(0, nbytes, step)]


def check_tasks(stored: StoredFile, tensor: StoredTensor, frame: memoryview) -> list[Task]:
    """What checks the blocks of a frame, likewise. `frame` is a memory map: so they also come into memory."""
    reader = stored.frame(tensor)
    count, step = reader.info.num_blocks, max(1, TASK_NBYTES // reader.block_nbytes)

    def run(first: int, scratch: memoryview) -> None:
        stored.check_mapped(tensor, frame, first, min(step, count - first))

    return [partial(run, first) for first in range(0, count, step)]


def load_range(
    stored: StoredFile, tensor: StoredTensor, start: int, stop: int, threads: int, verify: bool
) -> memoryview:
    """Content bytes [start, stop) of one tensor. Plain tensors, whose hash is of the whole, are not checked unless they
    are empty. The base of a relative one was hashed when it was first needed, and must be the same file still.

    Raises:
        FormatError: the data is damaged.
        OSError: reading fails, or the file of the base was written to.
    """
    relative = stored.is_relative(tensor)
    if relative:
        stored.base_of(tensor, threads=threads, verify=False)
    out = new_buffer(stop - start)
    if len(out):
        with _naming_changes(stored):
            stored.read(tensor, start, out, threads=threads, verify=verify)
        if relative and verify:
            stored.base_of(tensor, threads=threads).check_unchanged()
    elif verify and not tensor.entry.nbytes:
        stored.check_hash(tensor, tensor.content_hash, content_hash(out, threads=1))
    return out


def _allocate(sizes: Sequence[int]) -> list[memoryview]:
    shared = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes if size < _OWN_MEMORY_NBYTES]
    arena = new_buffer(sum(shared))
    outs = []
    position = 0
    for size in sizes:
        if size < _OWN_MEMORY_NBYTES:
            outs.append(arena[position : position + size])
            position += -(-size // _ALIGNMENT) * _ALIGNMENT
        else:
            outs.append(new_buffer(size))
    return outs


class Scratch(threading.local):
    """The memory that each thread needs for its tasks."""

    __reduce_ex__ = not_copied("memory for one thread", "make another one")

    def __init__(self) -> None:
        self.memory = new_buffer(TASK_NBYTES + (TASK_NBYTES >> 3))
