"""The frame in a uint8 tensor: opened once, decoded in ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ..._ground.copies import not_copied, twin_of
from ...codec import FrameReader, byte_view, check_frame_size, check_padding, torch_dtype
from ...codec.products import Order, PlacedFrame
from ...errors import ErrorContext, UnsupportedTensorError
from .blocks import FileBlocks, MemoryBlocks
from .team import team
from .turn import is_capturing

if TYPE_CHECKING:
    from types import TracebackType

    from torch import Tensor

    from ...codec import FrameInfo
    from ...storage.ahead import Ahead
    from ...storage.local import InputFile

_device_frames = WeakTensorKeyDictionary()
_open_frames = WeakTensorKeyDictionary()
"""By frame. Not an attribute of the tensor: that would be copied and pickled with it."""


class Origin(NamedTuple):
    """Where a frame came from, for the messages of errors, and whether its blocks are checked.

    Attributes:
        file: path of the file; None for a frame made in memory.
        tensor: name of the tensor; None likewise.
        verify: check the checksum of each block when it is first decoded, or, if the blocks are read from a file each
            time, whenever it is.
    """

    file: str | None = None
    tensor: str | None = None
    verify: bool = True


class _Reading(ErrorContext):
    """Around every use of the blocks. The file is looked at before, since a process that touches a lost page of a map
    is killed, and once more behind: what was written to it meanwhile may have been used.
    """

    __slots__ = ("_stored",)

    def __init__(self, origin: Origin, stored: InputFile | None) -> None:
        super().__init__(file=origin.file, tensor=origin.tensor)
        self._stored = stored

    def __enter__(self) -> None:
        if self._stored is not None:
            self._stored.check_unchanged()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        if self._stored is not None:
            self._stored.check_unchanged()


class OpenFrame:
    """A plain frame on the CPU, its header checked. It serves many threads at once.

    Attributes:
        info: FrameInfo.
        dtype: torch's dtype of the tensor.
        shape: its shape.
        origin: where it came from.
        ahead: what decodes it before it is used, None if nothing does.
        rows: None; a frame on a device may have a kernel for these.
        sent_by: torch's sharing strategy by which other processes get it, None if torch would move it to send it.
    """

    __reduce_ex__ = not_copied("the address of a frame", "copy the tensor that holds it")

    ahead: Ahead[OpenFrame] | None = None
    rows: None = None
    sent_by: str | None = None
    _placed: PlacedFrame | None

    def __init__(
        self, frame: Tensor, origin: Origin, file: InputFile | None = None, blocks: FileBlocks | None = None
    ) -> None:
        """
        Args:
            frame: from the first byte to the last, in memory or in the memory map of a file. With `blocks` only its
                header is read through it: a process that touches a page that the file has lost is killed.
            file: the open file that the bytes of the frame lie in, if they do.
            blocks: its blocks, if they stay in that file.
        """
        self.origin = origin
        self._file = file
        self._copies_to_send: dict[str, Tensor] = {}
        self._reading = _Reading(origin, file)
        with ErrorContext(file=origin.file, tensor=origin.tensor):
            view = byte_view(frame).data  # which keeps the memory, and not the tensor that this object is found by
            self._reader = FrameReader(view)
            self.info = self._reader.info
            if self.info.base_hash is not None:
                raise UnsupportedTensorError(
                    "expected a plain frame, got one that is relative to a base",
                    advice="open the checkpoint with its base, or transcode it",
                )
            self.dtype: torch.dtype = torch_dtype(self.info.dtype, self.info.bits)
            if blocks is None:
                check_frame_size(self.info, len(view))
                check_padding(self.info, view[self.info.header_nbytes + self.info.data_nbytes :])
        self.shape = self.info.shape
        self.blocks: MemoryBlocks | FileBlocks = blocks or MemoryBlocks(view[self.info.header_nbytes :])
        self._placed = self._place()

    @property
    def in_memory_nbytes(self) -> int:
        """How much of the frame takes memory."""
        return self.info.frame_nbytes if self.blocks.in_memory else self.info.header_nbytes

    def step(self, nbytes: int) -> int:
        """About so many bytes of content that are decoded together: whole blocks."""
        return max(1, nbytes // self._reader.block_nbytes) * self._reader.block_nbytes

    def in_memory(self, frame: Tensor) -> Tensor:
        """`frame`, which this is, with all its bytes in memory."""
        if self.blocks.in_memory:
            self.check_unchanged()
            return frame
        with self._reading:
            data = self.blocks.part(-self.info.header_nbytes, self.info.data_nbytes)
        return attach(torch.frombuffer(data, dtype=torch.uint8), self.origin)

    def check_unchanged(self) -> None:
        """Raise OSError if the bytes of the frame lie in a file that was written to."""
        if self._file is not None:
            self._file.check_unchanged()

    def loaded(self) -> AbstractContextManager[OpenFrame]:
        """The frame with all its blocks in memory, for the length of a ``with`` block."""
        return nullcontext(self) if isinstance(self.blocks, MemoryBlocks) else self._loaded(self.blocks)

    @contextmanager
    def _loaded(self, blocks: FileBlocks) -> Iterator[OpenFrame]:
        with self._reading, blocks.loaded() as in_memory:
            frame = twin_of(self)
            frame.blocks = in_memory
            frame._placed = frame._place()
            yield frame

    def decode(self, first: int, out: Tensor, threads: int | None = None) -> None:
        """Decode ``out.numel()`` elements from element `first` on into `out`, contiguous, on the CPU.

        Args:
            threads: so many of our own; by default those of torch, as many as it uses.

        Raises:
            FormatError: a block is damaged; file, tensor and block are named.
            OSError: the file that the frame is in was written to.
        """
        size = out.element_size()
        start, stop = first * size, (first + out.numel()) * size
        if start == stop:
            return
        count, pool = threads or torch.get_num_threads(), team() if threads is None else None
        if self._placed is not None and out.device.type == "cpu" and out.is_contiguous():
            with self._reading:
                self._placed.decode(start, stop, out.data_ptr(), count, pool)
            return
        if stop - start == self.info.uncompressed_nbytes and not self.blocks.in_memory:
            with self.loaded() as frame:
                frame.decode(first, out, threads)
            return
        with self._reading:
            lo, hi = self._reader.data_range(start, stop)
            self._reader.decode(
                self.blocks.part(lo, hi),
                byte_view(out, writable=True).data,
                start=start,
                stop=stop,
                data_offset=lo,
                threads=count,
                parallel=pool,
                verify=self.origin.verify,
            )

    def product_for(self, x: Tensor, bias: Tensor | None, mode: str) -> None:
        """None, as no device has the frame."""

    def linear(self, inputs: Tensor, order: Order) -> Tensor | None:
        """`inputs`, (..., columns), times the transpose of this tensor: float32, (..., rows), without a dense copy.
        All blocks are in memory. None where the same order may have other bits elsewhere (`PlacedFrame.linear`), and
        where the frame's words are no whole numbers.

        Raises:
            FormatError: a block is damaged.
            OSError: the file that the frame is in was written to.
            ValueError: the tensor is not BF16 or F16, or this machine has no kernels for that order.
        """
        shape = inputs.shape
        if len(self.shape) != 2 or shape[-1:] != self.shape[1:] or not inputs.is_cpu:
            raise ValueError(f"expected inputs for a tensor of shape {self.shape} on the CPU, got {shape}")
        if self.info.layout.word_nbytes != self.dtype.itemsize:
            return None
        inputs = inputs.to(torch.float32).contiguous()
        outputs = torch.empty((*shape[:-1], self.shape[0]), dtype=torch.float32, device="cpu")
        assert self._placed is not None
        with self._reading:
            plain = self._placed.linear(
                order,
                inputs.data_ptr(),
                math.prod(shape[:-1]),
                outputs.data_ptr(),
                torch.get_num_threads(),
                team(),
            )
        return outputs if plain else None

    def _place(self) -> PlacedFrame | None:
        """The frame as the core takes it, if its blocks are in memory."""
        if not self.blocks.in_memory:
            return None
        return PlacedFrame(self._reader, self.blocks.part(0, self.info.data_nbytes), verify=self.origin.verify)

    def check(self) -> None:
        """Check the checksums of all blocks, before the frame goes where none are checked.

        Raises:
            FormatError: a block is damaged.
            OSError: the file that the frame is in was written to.
        """
        if not self.origin.verify:
            return
        with self.loaded() as frame, frame._reading:
            self._reader.check_blocks(frame.blocks.part(0, self.info.data_nbytes))


def attach(frame: Tensor, origin: Origin, file: InputFile | None = None, blocks: FileBlocks | None = None) -> Tensor:
    """`frame`, opened, with where it came from; `file` and `blocks` are those of `OpenFrame`. Its bytes must not change
    from now on. Each use looks whether the file was written to."""
    _open_frames[frame] = OpenFrame(frame, origin, file, blocks)
    return frame


def opened(frame: Tensor) -> OpenFrame:
    """The open frame of a uint8 tensor on the CPU."""
    found: OpenFrame | None = _open_frames.get(frame)
    if found is None:
        found = _open_frames[frame] = OpenFrame(frame, Origin())
    return found


def copy_of(frame: Tensor, device: torch.device | None = None, non_blocking: bool = False) -> Tensor:
    """A copy, of which as much is known as of the frame."""
    found: OpenFrame | None = _open_frames.get(frame)
    source = frame if found is None else found.in_memory(frame)
    if source is not frame and device in (None, source.device):
        return source
    if device is not None and device.type != "cpu":
        opened(source).check()
    twin = source.to(device or frame.device, non_blocking=non_blocking, copy=True)
    check_unchanged(frame)  # nothing would ask again
    return twin if found is None or twin.device.type != "cpu" else attach(twin, found.origin)


def sendable(frame: Tensor) -> Tensor:
    """`frame`, or a copy in shared memory, the same for all callers, that torch sends to other processes as it is.

    Torch moves the memory of anything else that it sends, also from under threads that read it. It keeps nothing alive
    that a process is started with: the caller holds what it sends.
    """
    if frame.device.type != "cpu":
        return frame
    found, strategy = opened(frame), torch.multiprocessing.get_sharing_strategy()
    if found.sent_by == strategy:
        return frame
    if strategy not in found._copies_to_send:
        twin = copy_of(frame)
        attach(twin.share_memory_(), opened(twin).origin)  # again: it was moved
        opened(twin).sent_by = strategy
        found._copies_to_send.setdefault(strategy, twin)  # another thread may have been first
    return found._copies_to_send[strategy]


class AnyFrame(Protocol):
    """What an operator needs of an open frame, on any device.

    Attributes:
        info: FrameInfo.
        dtype, shape: of the tensor.
        rows: ``rows(ids, out)`` writes ``tensor[ids]`` to `out`, contiguous, for int32 or int64 on the same device, and
            does not wait for them; None if no kernel does that.
    """

    info: FrameInfo
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def rows(self) -> Callable[[Tensor, Tensor], None] | None: ...

    def decode(self, first: int, out: Tensor) -> None:
        """Decode ``out.numel()`` elements from element `first` on into `out`."""

    def product_for(self, x: Tensor, bias: Tensor | None, mode: str) -> Any:
        """What multiplies inputs like `x` in a mode, on a device; None: decode the weight, and let torch multiply."""


class FrameThere(AnyFrame, Protocol):
    """The same on a device.

    Attributes:
        member: its weight as one of a group that is multiplied together (products/joint.py); None if it is in none.
    """

    member: Any

    @property
    def product(self) -> Any:
        """Its rows, ready to be multiplied; None if no kernel does that. Made at the first use
        (`functools.cached_property`)."""

    def at(self, frame: Tensor) -> FrameThere:
        """The same, for a copy of the frame on the same device. The bytes may come there later."""

    def slab_for(self, x: Tensor, bias: Tensor | None, mode: str) -> int:
        """How many rows are decoded and multiplied at a time, where `product_for` has nothing; 0: all at once."""


_open_on_device: Callable[[Tensor], FrameThere] | None = None


def open_on_devices_by(factory: Callable[[Tensor], FrameThere]) -> None:
    """Let `factory` open the frames that do not lie on the CPU."""
    global _open_on_device
    _open_on_device = factory


def opened_anywhere(frame: Tensor) -> AnyFrame:
    """The open frame of a uint8 tensor on the CPU, or on a device."""
    return opened(frame) if frame.device.type == "cpu" else opened_there(frame)


def opened_there(frame: Tensor) -> FrameThere:
    """The open frame of a uint8 tensor on a device.

    Raises:
        ImportError: what opens frames there cannot be imported.
        RuntimeError: it is not open yet, and a graph is captured.
    """
    found: FrameThere | None = _device_frames.get(frame)
    if found is None:
        assert _open_on_device is not None
        check_not_capturing(frame.device)
        found = _device_frames[frame] = _open_on_device(frame)
    return found


def ready_to_multiply(frame: Tensor) -> FrameThere:
    """The same, with its product made.

    Raises:
        ImportError: what opens frames there cannot be imported.
        RuntimeError: one of both is not made yet, and a graph is captured.
    """
    found = opened_there(frame)
    if "product" not in vars(found):
        check_not_capturing(frame.device)
        found.product  # noqa: B018 - made by asking for it
    return found


def check_not_capturing(device: torch.device) -> None:
    """Refuse to prepare a weight while a graph is captured: the host cannot wait for the device then."""
    if is_capturing(device):
        raise RuntimeError(
            f"a compressed weight on {device} would be opened while a graph is captured; before that, call "
            "tensorwire.torch.prepare(model), which opens all of them"
        )


def is_open(frame: Tensor) -> bool:
    """Whether a frame on a device is open."""
    return frame in _device_frames


def close(frame: Tensor) -> None:
    """Forget that a frame on a device is open; its tables are freed once they are out of use."""
    _device_frames.pop(frame, None)


def opened_as(frame: Tensor, other: FrameThere) -> Tensor:
    """`frame`, opened: memory on a device for copies of another frame there."""
    _device_frames[frame] = other.at(frame)
    return frame


def in_memory_nbytes(frame: Tensor) -> int:
    """How much memory a frame takes, which may be less than its size."""
    found: OpenFrame | None = _open_frames.get(frame)
    return int(frame.numel()) if found is None else found.in_memory_nbytes


def check_unchanged(frame: Tensor) -> None:
    """Raise OSError if the frame lies in a file that was written to: then its bytes are not to be read as memory."""
    found: OpenFrame | None = _open_frames.get(frame)
    if found is not None:
        found.check_unchanged()


def check_matches(frame: AnyFrame, dtype: torch.dtype, shape: Sequence[int], first: int = 0) -> None:
    """Refuse a dtype, or a number of elements, that is not the frame's."""
    count, held = math.prod(shape), math.prod(frame.shape)
    if dtype != frame.dtype or not 0 <= first <= first + count <= held:
        raise ValueError(f"expected elements within {held} of {frame.dtype}, got {count} of {dtype} from {first} on")
