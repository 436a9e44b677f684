"""A publisher's copies of what it has published, each where its tensor lies, and the frames that are made against them.

Copies in this process's memory are here. The layer of tensors that lie elsewhere registers its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .._ground.allocation import new_buffer
from ..codec import compress, compress_over, content_hash, frame_info, tensor_view
from ..files.frame_file import Stored
from ..files.writer import may_save, saves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..codec import Profile, TensorView
    from .versions import Tensor


class Encoded(NamedTuple):
    """A tensor as a version stores it.

    Attributes:
        copy: holds its content now.
        base_hash: of what the copy held before, if the frame is relative to that.
    """

    stored: Stored
    copy: Any
    base_hash: str | None


class View(Protocol):
    """A tensor that is to be published, as its copies see it."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class Copies(Protocol):
    """Copies in one kind of memory. One thread at a time uses them."""

    def view(self, array: Any) -> Any:
        """A View of it. UnsupportedTensorError if it cannot be read or stored."""

    def copy(self, view: Any) -> tuple[Any, str]:
        """A new copy, and its content hash."""

    def load(self, view: Any, content: memoryview) -> Any:
        """A copy, as of a tensor like `view`, that has this content."""

    def put(self, name: str, view: Any, copy: Any | None, base_hash: str | None) -> None:
        """Put content into a copy, or into a new one, and encode what is there. With the hash of what it held before,
        the frame is relative to that."""

    def put_again(self, name: str, tensor: Tensor, copy: Any) -> None:
        """Encode what a copy holds, as a frame of its own."""

    def encoded(self, *, last: bool) -> Iterator[Encoded]:
        """What was put and is ready, in its order; with `last` all of it."""

    def drop(self) -> None:
        """Forget what was put and not given: its version has failed."""


class HostCopies:
    """Implements Copies, in this process's memory."""

    def __init__(self, profile: Profile, threads: int) -> None:
        self._profile, self._threads = profile, threads
        self._ready: list[Encoded] = []

    def view(self, array: Any) -> TensorView:
        return tensor_view(array)

    def copy(self, view: TensorView) -> tuple[memoryview, str]:
        data = new_buffer(len(view.data))
        data[:] = view.data
        view.check_memory()
        return data, content_hash(data, threads=self._threads)

    def load(self, view: TensorView, content: memoryview) -> memoryview:
        return content

    def put(self, name: str, view: TensorView, copy: memoryview | None, base_hash: str | None) -> None:
        held = new_buffer(len(view.data)) if copy is None else copy
        stored = self._stored(name, view.dtype, view.shape, view.data, held, base_hash)
        view.check_memory()
        self._ready.append(Encoded(stored, held, base_hash))

    def put_again(self, name: str, tensor: Tensor, copy: memoryview) -> None:
        self._ready.append(Encoded(self._stored(name, *tensor.layout, copy, copy, None), copy, None))

    def encoded(self, *, last: bool) -> Iterator[Encoded]:
        while self._ready:
            yield self._ready.pop(0)

    def drop(self) -> None:
        self._ready = []

    def _stored(
        self, name: str, dtype: str, shape: tuple[int, ...], new: memoryview, copy: memoryview, base_hash: str | None
    ) -> Stored:
        """The base is known, since nothing else writes to our copies."""
        if base_hash is not None and may_save(dtype, len(new)):
            frame = compress_over(
                copy, new, dtype=dtype, shape=shape, profile=self._profile, base_hash=base_hash, threads=self._threads
            )
        else:
            copy[:] = new
            if not may_save(dtype, len(new)):
                return Stored(name, dtype, shape, bytes(copy), False, content_hash(copy, threads=self._threads))
            frame = compress(copy, dtype=dtype, shape=shape, profile=self._profile, threads=self._threads)
        info = frame_info(frame)
        if saves(info.frame_nbytes, len(new)):
            return Stored(name, dtype, shape, frame, True, info.content_hash)
        return Stored(name, dtype, shape, bytes(copy), False, info.content_hash)
