"""The content of stored tensors into new memory, on all cores."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ...codec import content_hash, new_buffer
from ...errors import ErrorContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .reader import StoredFile, StoredTensor

_TASK_NBYTES = 4 << 20
"""About what a thread decodes at a time: whole blocks, small enough for its cache, enough to make calls cheap."""

_OWN_MEMORY_NBYTES = 1 << 20
"""A tensor from this size on has memory of its own, which is freed with it; smaller ones share some."""

_ALIGNMENT = 64

Task = TypeVar("Task")


class _Task(NamedTuple):
    tensor: StoredTensor
    start: int
    out: memoryview


def load_bytes(
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
    tasks = []
    for tensor, out in zip(tensors, outs, strict=True):
        step = _TASK_NBYTES
        if tensor.compressed:
            block_nbytes = stored.frame(tensor).block_nbytes
            step = max(1, _TASK_NBYTES // block_nbytes) * block_nbytes
        elif tensor.content_hash is not None:  # which is of all content
            step = max(1, len(out))
        tasks += [_Task(tensor, start, out[start : start + step]) for start in range(0, len(out), step)]
    tasks.sort(key=lambda task: task.tensor.compressed)  # the long ones first

    def run(task: _Task, scratch: memoryview) -> None:
        with ErrorContext(file=stored.path, tensor=task.tensor.name):
            stored.read(task.tensor, task.start, task.out, threads=1, verify=verify, scratch=scratch)
            if verify and not task.tensor.compressed and task.tensor.content_hash is not None:
                stored.check_hash(task.tensor, task.tensor.content_hash, content_hash(task.out, threads=1))

    _run_all(tasks, run, min(threads, len(tasks)))
    for tensor, out in zip(tensors, outs, strict=True):
        if verify and tensor.compressed and (expected := stored.expected_hash(tensor)) is not None:
            stored.check_hash(tensor, expected, content_hash(out, threads=threads))
    return outs


class _Blocks(NamedTuple):
    tensor: StoredTensor
    first: int
    num_blocks: int
    out: memoryview


def load_frames(
    stored: StoredFile, tensors: Sequence[StoredTensor], outs: Sequence[memoryview], threads: int, verify: bool
) -> None:
    """The frames of compressed tensors, as they are, each into memory of its size.

    With `verify` the checksums of blocks are compared while they are in the cache.

    Raises:
        FormatError: the data is damaged.
        OSError: reading fails.
    """
    tasks: list[_Blocks] = []
    for tensor, out in zip(tensors, outs, strict=True):
        frame = stored.frame(tensor)
        step = max(1, _TASK_NBYTES // frame.block_nbytes)
        firsts = range(0, max(1, frame.info.num_blocks), step)
        tasks += [_Blocks(tensor, first, min(step, frame.info.num_blocks - first), out) for first in firsts]

    def run(task: _Blocks, scratch: memoryview) -> None:
        stored.read_frame(task.tensor, task.first, task.num_blocks, task.out, verify=verify)

    _run_all(tasks, run, min(threads, len(tasks)))


def load_range(
    stored: StoredFile, tensor: StoredTensor, start: int, stop: int, threads: int, verify: bool
) -> memoryview:
    """Content bytes [start, stop) of one tensor. Plain tensors, whose hash is of the whole, are not checked. The base
    of a relative one was hashed when it was first needed, and must be the same file still.

    Raises:
        OSError: reading fails, or the file of the base was written to.
    """
    relative = stored.is_relative(tensor)
    if relative:
        stored.base_of(tensor, threads=threads, verify=False)
    out = new_buffer(stop - start)
    if len(out):
        stored.read(tensor, start, out, threads=threads, verify=verify)
        if relative and verify:
            stored.base_of(tensor, threads=threads).stored.file.check_unchanged()
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


def _run_all(tasks: Iterable[Task], run: Callable[[Task, memoryview], None], threads: int) -> None:
    """Run tasks on this thread and others, each with scratch memory of its own; raise the first error."""
    remaining = iter(tasks)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work() -> None:
        scratch = new_buffer(_TASK_NBYTES + (_TASK_NBYTES >> 3))
        try:
            while not errors:
                with lock:
                    task = next(remaining, None)
                if task is None:
                    return
                run(task, scratch)
        except BaseException as error:
            errors.append(error)

    helpers = [threading.Thread(target=work, name="tensorwire-load", daemon=True) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
