"""Frames of tensors on a device: launch data, made once, and the launches."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ...._ground.copies import not_copied
from ....codec import LEAF_NBYTES
from ....codec.device_blocks import frame_to_encode, header_to_encode
from ....errors import LimitExceededError
from ..cuda_kernels import PackedKernel
from ..driver import Kernel
from .launch_data import LaunchData
from .operands import CODINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....codec import FrameInfo, Profile
    from ..driver import Driver
    from ..plan import Array

_THREADS, _AT_ONCE = 256, 3  # of a block of threads; blocks on a processor
_LEAF, _BASE_LEAF = 1 << 31, 3 << 30  # write_blocks.cuh, write_steps.cuh
_SUMS_NBYTES, _PIECE_NBYTES, _SUMS_OF_PIECE_NBYTES = 8192, 1024, 64  # hash.cuh
_FINISH_NBYTES = _SUMS_NBYTES + 768  # finish_frames.cuh
STEPS_NBYTES = 47_712  # SparseShared of encode_sparse.cuh
_STEPS_WORDS = 32_768  # of a block of a relative frame
_ENCODER_NBYTES = 3248  # of shared memory: counters, and lists of escapes (encode.cuh)
_STATIC_NBYTES = 128  # that write_blocks.cuh takes besides
_ESCAPES = 16
"""A block of which more words than one in so many escape does not fit into shared memory, and is encoded twice."""
_MOST_DATA_NBYTES = ((1 << 31) - 1) * 32  # whose places an index can tell
_FRAME = np.dtype(
    [(name, "<u8") for name in ("content", "slot", "slot_nbytes", "nbytes", "base")]
    + [(name, "<u4") for name in ("leaves", "ends", "header", "index_at", "num_blocks", "block_words")]
)
"""NewFrame of new_frames.cuh."""


class Known(NamedTuple):
    """Which content hashes calls give."""

    hashes: bool
    base_hashes: bool


class NewFrames:
    """Tensors, perhaps bases, and the slots that frames go to. Each call may find other content there. Serves many
    threads.

    Holds addresses alone: the caller keeps tensors and slots alive.
    """

    __reduce_ex__ = not_copied("addresses on a device", "encode the tensors again")

    def __init__(
        self, driver: Driver, tensors: Sequence[torch.Tensor], bases: Sequence[torch.Tensor] | None,
        slots: Sequence[torch.Tensor], profile: Profile, known: Known,
    ) -> None:  # fmt: skip
        """Make the launch data and copy them to the device, for which the host does not wait.

        Args:
            tensors: one or more, of dtypes in CODINGS, contiguous, at multiples of 16 bytes.
            bases: what frames are relative to: as many, of the same dtypes and sizes, placed as they are. None for
                plain frames.
            slots: as many, uint8, contiguous, at multiples of 16 bytes, on the same device.
            known: what calls of `encode` give.

        Raises:
            LimitExceededError: a tensor is larger than the format allows.
        """
        self._driver = driver
        self._lock = threading.Lock()  # of what is packed
        relative = bases is not None
        infos = [_info(each, profile, relative) for each in tensors]
        headers = [header_to_encode(info) for info in infos]
        table = _table(tensors, slots, infos, headers)
        if bases is not None:
            table["base"] = [each.data_ptr() for each in bases]
        self._num_ends = sum(info.num_blocks for info in infos)
        self._num_leaves = sum(map(_num_leaf_numbers, infos))
        items = {dtype: _items_of(dtype, infos, known) for dtype in CODINGS}
        parts = [table.view("<i8"), np.frombuffer(b"".join(headers), "<i8"), *items.values()]
        self._data = LaunchData(parts, slots[0].device)
        frames, on_device, *groups = self._data.parts
        self._writers = [
            _StepsWriter(driver, dtype, infos, frames, group)
            if relative
            else _Writer(driver, dtype, profile, infos, frames, group)
            for dtype, group in zip(items, groups, strict=True)
            if len(group)
        ]
        self._count = len(tensors)
        self._finish = PackedKernel(
            driver, Kernel("finish_frames.cuh", "finish_frames"), _THREADS, _FINISH_NBYTES,
            frames=frames, headers=on_device, ends=frames, leaves=frames, hashes=0, base_hashes=0, sizes=frames,
        )  # fmt: skip

    def encode(self, sizes: torch.Tensor, hashes: torch.Tensor | None, base_hashes: torch.Tensor | None) -> None:
        """Write the frames, and their sizes.

        Args:
            sizes: int64, (count,): 0 for a frame that is larger than its slot.
            hashes, base_hashes: uint8, (count, 16), where calls give the content hashes of the tensors, of their bases.
        """
        self._data.await_copy()
        numbers = [len(self._writers), self._num_ends, self._num_leaves]
        tickets, ends, leaves = torch.zeros(sum(numbers), dtype=torch.int64, device=sizes.device).split(numbers)
        stream = self._driver.stream()
        with self._lock:
            for number, writer in enumerate(self._writers):
                writer.launch(stream, tickets[number:], ends, leaves)
            known = [0 if each is None else each.data_ptr() for each in (hashes, base_hashes)]
            self._finish.launch(
                stream, self._count, ends=ends.data_ptr(), leaves=leaves.data_ptr(), hashes=known[0],
                base_hashes=known[1], sizes=sizes.data_ptr(),
            )  # fmt: skip


def _info(tensor: torch.Tensor, profile: Profile, relative: bool) -> FrameInfo:
    block_words = _STEPS_WORDS if relative else 0
    info = frame_to_encode(CODINGS[tensor.dtype].name, tuple(tensor.shape), profile, block_words=block_words)
    if info.uncompressed_nbytes > _MOST_DATA_NBYTES:
        raise LimitExceededError(
            f"expected a tensor of at most {_MOST_DATA_NBYTES} bytes, got one of {info.uncompressed_nbytes}",
            advice="split it",
        )
    return info


def _num_leaves(info: FrameInfo) -> int:
    return -(-info.uncompressed_nbytes // LEAF_NBYTES)


def _num_leaf_numbers(info: FrameInfo) -> int:
    """The size, and the hashes of leaves; of the tensor and of its base."""
    return (1 + 2 * _num_leaves(info)) * (1 if info.base_hash is None else 2)


def _table(
    tensors: Sequence[torch.Tensor], slots: Sequence[torch.Tensor], infos: Sequence[FrameInfo], headers: Sequence[bytes]
) -> Array:
    table = np.zeros(len(tensors), _FRAME)
    leaves = ends = words = 0
    for number, (tensor, slot, info, header) in enumerate(zip(tensors, slots, infos, headers, strict=True)):
        table[number] = (
            tensor.data_ptr(), slot.data_ptr(), slot.numel(), info.uncompressed_nbytes, 0,
            leaves, ends, words, len(header), info.num_blocks, info.block_words,
        )  # fmt: skip
        leaves += _num_leaf_numbers(info)
        ends += info.num_blocks
        words += len(header) // 8
    return table


def _items_of(dtype: torch.dtype, infos: Sequence[FrameInfo], known: Known) -> Array:
    """What blocks of threads do for the tensors of a dtype: two numbers of 32 bits each, packed. In front of them, for
    relative frames, the numbers of these tensors."""
    numbers = [number for number, info in enumerate(infos) if info.dtype == CODINGS[dtype].name]
    relative = [number for number in numbers if infos[number].base_hash is not None]
    return np.concatenate([np.array(relative, np.int64), *(_items(number, infos[number], known) for number in numbers)])


def _items(number: int, info: FrameInfo, known: Known) -> Array:
    """The items of a tensor: its blocks, and its leaves and those of its base unless their hashes are not needed, each
    before the first block that begins in it or behind."""
    blocks = np.arange(info.num_blocks, dtype=np.uint64)
    leaves = np.arange(_num_leaves(info), dtype=np.uint64)
    none = leaves[:0]
    own = none if known.hashes else leaves
    others = none if known.base_hashes or info.base_hash is None else leaves
    block_nbytes = info.block_words * info.layout.word_nbytes
    begins = np.concatenate([own * LEAF_NBYTES, others * LEAF_NBYTES, blocks * block_nbytes])
    what = np.concatenate([own + _LEAF, others + _BASE_LEAF, blocks])[np.argsort(begins, kind="stable")]
    return (what << 32 | number).view(np.int64)


class _Writer:
    """What writes the blocks of the tensors of a dtype."""

    def __init__(
        self, driver: Driver, dtype: torch.dtype, profile: Profile, infos: Sequence[FrameInfo], frames: torch.Tensor,
        items: torch.Tensor,
    ) -> None:  # fmt: skip
        coding = CODINGS[dtype]
        words = max(
            min(info.block_words, info.uncompressed_nbytes // info.layout.word_nbytes)
            for info in infos
            if info.dtype == coding.name
        )
        header, encoder, bits, own = "write_blocks.cuh", "Resident", coding.bits, _ENCODER_NBYTES
        if profile == "fast":
            header, encoder, bits, own = "write_fast.cuh", "Fast", coding.fast_bits, tiers_room_nbytes(words)
        # At most. 64: short runs, descriptor, alignment.
        streams = min(words * bits // 8 + words // _ESCAPES + 64, words * dtype.itemsize)
        hashed = max(own, -(-streams // _PIECE_NBYTES) * _SUMS_OF_PIECE_NBYTES)
        room = min(-(-streams // 32) * 32, (driver.shared_nbytes - _STATIC_NBYTES - hashed) // 32 * 32)
        self._num_items = len(items)
        self._most_blocks = driver.num_processors * _AT_ONCE
        tables = {"frames": frames, "items": items, "ends": frames}
        self._blocks = PackedKernel(
            driver, Kernel(header, f"write_blocks<{encoder}<{coding.layout}>>"), _THREADS,
            max(hashed + room, _SUMS_NBYTES), **tables, leaves=frames, tickets=frames, hashed=hashed, room=room,
        )  # fmt: skip
        self._others = PackedKernel(
            driver, Kernel(header, f"write_others<{encoder}<{coding.layout}>>"), _THREADS, max(own, _SUMS_NBYTES),
            **tables, count=len(items),
        )  # fmt: skip

    def launch(self, stream: int, tickets: torch.Tensor, ends: torch.Tensor, leaves: torch.Tensor) -> None:
        at = ends.data_ptr()
        self._blocks.launch(stream, self._num_items, ends=at, leaves=leaves.data_ptr(), tickets=tickets.data_ptr())
        self._others.launch(stream, min(self._num_items, self._most_blocks), ends=at)


def tiers_room_nbytes(words: int) -> int:
    """tiers_room_nbytes of sample_tiers.cuh."""
    return 4 * (300 + 256 + 16 + 64) + -(-words // 256) * 256 + 16


class _StepsWriter:
    """What writes the blocks of relative frames of the tensors of a dtype."""

    def __init__(
        self, driver: Driver, dtype: torch.dtype, infos: Sequence[FrameInfo], frames: torch.Tensor, items: torch.Tensor
    ) -> None:
        layout, some = CODINGS[dtype].layout, sum(info.dtype == CODINGS[dtype].name for info in infos)
        numbers, items = items.split([some, len(items) - some])
        self._num_frames, self._num_numbers, self._num_items = len(infos), some, len(items)
        self._thresholds = PackedKernel(
            driver, Kernel("thresholds.cuh", f"choose_thresholds<{layout}>"), _THREADS,
            frames=frames, numbers=numbers, thresholds=frames,
        )  # fmt: skip
        self._blocks = PackedKernel(
            driver, Kernel("write_steps.cuh", f"write_steps<{layout}>"), _THREADS, STEPS_NBYTES,
            frames=frames, items=items, ends=frames, leaves=frames, tickets=frames, thresholds=frames,
        )  # fmt: skip

    def launch(self, stream: int, tickets: torch.Tensor, ends: torch.Tensor, leaves: torch.Tensor) -> None:
        if not self._num_items:
            return
        thresholds = torch.empty(self._num_frames, dtype=torch.int32, device=ends.device)
        self._thresholds.launch(stream, self._num_numbers, thresholds=thresholds.data_ptr())
        self._blocks.launch(
            stream, self._num_items, ends=ends.data_ptr(), leaves=leaves.data_ptr(), tickets=tickets.data_ptr(),
            thresholds=thresholds.data_ptr(),
        )  # fmt: skip
