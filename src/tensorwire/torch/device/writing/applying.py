"""Relative frames applied to tensors in place, where both are: on a device by kernels, on the CPU by the core."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._ground.copies import not_copied
from ....codec import LEAF_NBYTES, address_of, decompress, frame_info
from ....errors import BaseMismatchError, FormatError, UnsupportedTensorError
from ..cuda_kernels import PackedKernel
from ..driver import Kernel
from ..nvidia import required_driver
from .given import check_tensor, listed
from .kept import Kept
from .launch_data import LaunchData
from .operands import ALIGNMENT, dtype_name
from .status import Status, status_of

if TYPE_CHECKING:
    from ..driver import Driver

_THREADS = 256  # relative.cuh
_SHARED_NBYTES = 49_152  # apply.cuh
_PARTS = 2  # of a leaf, each for a block of threads: a block of the format has as many bytes in most frames
_OPENED_NBYTES = 64  # relative.cuh
_PAIR = np.dtype(
    [(name, "<u8") for name in ("frame", "room", "tensor", "nbytes")]
    + [("dtype", "S16")]
    + [(name, "<u4") for name in ("first_leaf", "leaves", "number", "word_nbytes")]
)
"""Pair of relative.cuh."""
_WORDS = {1: "u8", 2: "u16", 4: "u32", 8: "u32"}


def apply_(
    frames: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], status: torch.Tensor, *, verify: bool = True
) -> None:
    """Apply relative frames to the tensors that they are relative to, in place: a checking reader (docs/format.md).

    On a CUDA device kernels do so, on the current stream, in few launches for all tensors together; the host waits for
    nothing. They apply frames whose blocks are same, stored, constant or of kinds sparse and dense, of tensors whose
    words have 8 or 16 bits; of other tensors those without blocks of the last two kinds. For a frame that may
    be valid but has other blocks, and for a plain one, the status is HOST_ONLY, and nothing is written. On the CPU the
    core applies any frame.

    In a graph, first make the call once outside: with the same frames, tensors and status, before the graph is
    captured. What it needs then stays on the device until the process ends. Each replay reads what the frames hold by
    then. Any thread may call it, also several at once, but not with the same tensors. Nothing else may write to frames
    and tensors meanwhile.

    Args:
        frames: contiguous uint8 tensors of one dimension, all on one device; on a CUDA device at multiples of 16 bytes.
            Each begins with a frame; bytes may follow.
        tensors: as many, contiguous, on the same device; on a CUDA device at multiples of 16 bytes. No two of them
            share memory.
        status: int32, (count,), on the same device: gets a `Status` for each, which `raise_for` makes an error of.
        verify: compare the content hashes of base and result, and check all blocks before the first word is written. A
            tensor that has the frame's content already is left as it is, with status DONE: to apply a frame twice is no
            mistake. With another status the tensor is as it was, but for one case: all checks went well, and the result
            has another content hash than the frame says, which a wrong encoder may make. Then the status is CORRUPT.
            Without `verify` header and index are checked still, and blocks as far as nothing is written outside the
            tensor. A damaged one may leave wrong values, and to apply a frame twice is a mistake.

    Raises:
        UnsupportedTensorError: safetensors has no name for the dtype of a tensor, or it has no memory of its own, as a
            compressed one. Nothing is launched then, here and below.
        TypeError: something is no tensor, or a tensor is given in the place of a list.
        ValueError: lengths, dtypes, shapes, devices or places do not go together.
        RuntimeError: the device has no NVRTC; or a graph is captured, and the call was not made before.
    """
    frames, tensors = listed("frames", frames), [each.detach() for each in listed("tensors", tensors)]
    check_tensor("status", status)
    driver = required_driver(status.device)
    _check(frames, tensors, status, ALIGNMENT if driver is not None else 1)
    if driver is None:
        for number, (frame, tensor) in enumerate(zip(frames, tensors, strict=True)):
            status[number] = _apply_on_host(frame, tensor, verify)
    elif tensors:
        places = [(each.data_ptr(), each.numel(), each.dtype) for each in (*frames, *tensors)]
        key = (driver, verify, status.data_ptr(), tuple(places))
        _kept.find(key, status.device, lambda: Batch(driver, frames, tensors, status, verify=verify)).apply()


class Batch:
    """Frames, and the tensors that they are applied to. Each call may find other content there. Serves many threads.

    Holds addresses alone: the caller keeps frames, tensors and status alive.
    """

    __reduce_ex__ = not_copied("addresses on a device", "apply the frames again")

    def __init__(
        self, driver: Driver, frames: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], status: torch.Tensor,
        *, verify: bool,
    ) -> None:  # fmt: skip
        """Make the launch data and copy them to the device, for which the host does not wait.

        Args:
            tensors: one or more.
        """
        self._driver = driver
        self._lock = threading.Lock()
        self._groups = [
            _Group(driver, [(number, frames[number], tensors[number]) for number in numbers], status, verify)
            for numbers in _by_words(tensors)
        ]

    def apply(self) -> None:
        """Launch what applies the frames."""
        stream = self._driver.stream()
        with self._lock:
            for group in self._groups:
                group.launch(stream)


class _Group:
    """Pairs of a batch with words of one size."""

    def __init__(
        self,
        driver: Driver,
        pairs: Sequence[tuple[int, torch.Tensor, torch.Tensor]],
        status: torch.Tensor,
        verify: bool,
    ) -> None:
        table = _table(pairs)
        pair_of = np.repeat(np.arange(len(pairs), dtype=np.uint32), table["leaves"])
        self._count, self._leaves, self._verify = len(pairs), len(pair_of), verify
        opened = np.zeros(len(pairs) * _OPENED_NBYTES // 8, np.int64)
        messages = np.zeros(len(pairs) + 2 * len(pair_of), np.int64)
        pair_of = np.pad(pair_of, (0, len(pair_of) % 2)).view(np.int64)
        self._data = LaunchData([table.view(np.int64), pair_of, opened, messages], status.device)
        on_device = self._data.parts
        words = _WORDS[int(table["word_nbytes"][0])]
        common = {"pairs": on_device[0], "opened": on_device[2], "messages": on_device[3], "status": status}
        self._open = PackedKernel(
            driver, Kernel("open_relative.cuh", "open_frames"), _THREADS, **common, verify=int(verify)
        )

        def kernel(expression: str, shared_nbytes: int = 0) -> PackedKernel:
            found = Kernel("apply.cuh", expression)
            return PackedKernel(driver, found, _THREADS, shared_nbytes, **common, pair_of=on_device[1])

        self._apply = kernel(f"take_blocks<{words}, true>", _SHARED_NBYTES)
        if verify:
            self._check = kernel(f"take_blocks<{words}, false>", _SHARED_NBYTES)
            self._compare_bases = kernel("compare_tensors<false>")
            self._compare_results = kernel("compare_tensors<true>")

    def launch(self, stream: int) -> None:
        self._data.await_copy()
        self._open.launch(stream, self._count)
        if self._verify:
            self._check.launch(stream, self._leaves, _PARTS)
            self._compare_bases.launch(stream, self._leaves)
        self._apply.launch(stream, self._leaves, _PARTS)
        if self._verify:
            self._compare_results.launch(stream, self._leaves)


_kept: Kept[Batch] = Kept()


def _check(frames: list[torch.Tensor], tensors: list[torch.Tensor], status: torch.Tensor, alignment: int) -> None:
    count, device = len(tensors), status.device
    if len(frames) != count:
        raise ValueError(f"expected {count} frames, one for each tensor, got {len(frames)}")
    if status.dtype != torch.int32 or status.shape != (count,) or not status.is_contiguous():
        raise ValueError(
            f"expected status as a contiguous tensor of {torch.int32} and shape {(count,)}, got {status.dtype} and "
            f"{tuple(status.shape)}, strides {status.stride()}"
        )
    for number, (frame, tensor) in enumerate(zip(frames, tensors, strict=True)):
        if frame.dtype != torch.uint8 or frame.dim() != 1:
            raise ValueError(
                f"expected frame {number} as a tensor of uint8 with one dimension, got {frame.dtype} and shape "
                f"{tuple(frame.shape)}"
            )
        if dtype_name(tensor) is None or tensor.layout != torch.strided:
            raise UnsupportedTensorError(
                f"expected tensors of dtypes that safetensors has, got one of {tensor.dtype} and layout "
                f"{tensor.layout}: number {number}"
            )
        for name, each in (("frame", frame), ("tensor", tensor)):
            if each.device != device or not each.is_contiguous():
                raise ValueError(
                    f"expected {name} {number} contiguous and on {device}, as status is, got one on {each.device}, "
                    f"strides {each.stride()}"
                )
            address = address_of(each)
            if address % alignment:
                raise ValueError(f"expected {name} {number} at a multiple of {alignment} bytes, got {address:#x}")
    spans = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in tensors if each.nbytes)
    if any(end > begin for (_, end), (begin, _) in pairwise(spans)):
        raise ValueError("expected tensors that share no memory, got two that do; give each one once")


def _by_words(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Numbers of tensors whose kernels are the same."""
    kernels: dict[str, list[int]] = {}
    for number, tensor in enumerate(tensors):
        kernels.setdefault(_WORDS[_word_nbytes(tensor)], []).append(number)
    return list(kernels.values())


def _word_nbytes(tensor: torch.Tensor) -> int:
    return int(tensor.element_size()) // (2 if tensor.is_complex() else 1)


def _table(pairs: Sequence[tuple[int, torch.Tensor, torch.Tensor]]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    table = np.zeros(len(pairs), _PAIR)
    first = 0
    for place, (number, frame, tensor) in enumerate(pairs):
        leaves = max(1, -(-tensor.nbytes // LEAF_NBYTES))
        table[place] = (
            frame.data_ptr(), frame.numel(), tensor.data_ptr(), tensor.nbytes, (dtype_name(tensor) or "").encode(),
            first, leaves, number, _word_nbytes(tensor),
        )  # fmt: skip
        first += leaves
    return table


def _apply_on_host(frame: torch.Tensor, tensor: torch.Tensor, verify: bool) -> Status:
    try:
        info = frame_info(frame)
        if (info.dtype, info.uncompressed_nbytes) != (dtype_name(tensor), tensor.nbytes):
            return Status.ANOTHER_TENSOR
        decompress(frame, base=None if info.base_hash is None else tensor, out=tensor, verify=verify)
    except (FormatError, BaseMismatchError) as error:
        return status_of(error)
    return Status.DONE
