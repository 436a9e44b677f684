"""The weights of linear layers, decoded before they are needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from .._ground.copies import not_copied
from .._ground.text import count, in_a_line
from ..storage.ahead import Ahead, aligned
from .frames.open_frame import OpenFrame, opened
from .tensors.compressed_tensor import CompressedTensor

if TYPE_CHECKING:
    from torch import nn


_PART_NBYTES = 2 << 20
"""About what is decoded at a time: a layer may wait for the thread as long as that takes."""


class _Decoding:
    """The work of decoding frames ahead."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def nbytes(self, frame: OpenFrame) -> int:
        return frame.info.uncompressed_nbytes

    def step(self, frame: OpenFrame) -> int:
        return frame.step(_PART_NBYTES)

    def make(self, frame: OpenFrame, memory: memoryview, start: int, stop: int, ahead: bool) -> None:
        out = torch.frombuffer(memory[start:stop], dtype=frame.dtype)
        frame.decode(start // out.element_size(), out, self._threads if ahead else None)


class DecodeAhead:
    """What `decode_ahead` returns: close it, or use it in a ``with`` statement."""

    __reduce_ex__ = not_copied("a thread, and memory that it decodes into", "call decode_ahead with the other model")

    def __repr__(self) -> str:
        return in_a_line(self, count(len(self._frames), "weight"))

    def __init__(self, model: nn.Module, threads: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0))
        work = _Decoding(threads or max(1, cores - torch.get_num_threads()))
        frames = [
            opened(weight.frame)
            for weight in model.parameters()
            if isinstance(weight, CompressedTensor) and weight.dim() == 2 and weight.device.type == "cpu"
        ]
        # Frames in files are read ahead, which on most disks takes longer than to decode them on all threads of torch.
        self._frames = [frame for frame in frames if frame.blocks.in_memory]
        largest = max((work.nbytes(frame) for frame in self._frames), default=0)
        self._ahead: Ahead[OpenFrame] = Ahead(work, 2 * aligned(largest), niceness=19, least=0.5)
        for frame in self._frames:
            frame.ahead = self._ahead

    def close(self) -> None:
        """Decode per use again. The thread ends, and its memory is freed."""
        for frame in self._frames:
            if frame.ahead is self._ahead:
                frame.ahead = None
        self._ahead.close()

    def __enter__(self) -> DecodeAhead:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def decode_ahead(model: nn.Module, *, threads: int | None = None) -> DecodeAhead:
    """Decode the weight of the next linear layers while those before them are at work, in one background thread.

    The order is learned from the first pass and followed from the second on; a layer that comes out of turn decodes its
    weight itself. Outputs stay bit-identical. Decoded weights that are alive, the one in use among them, take memory of
    two of the largest, which is used over and over. Layers in mode "fused", and products in an order of torch's that is
    known, need no decoded weight and are not touched.
    Weights that stay in files are read ahead, with or without it. Derivatives, threads and forks work as without.

    The thread has the lowest priority: it takes the time that torch leaves on the cores. A layer decodes the rest of
    what the thread has not finished, or all of its weight if the thread has not got to half of it. Measure what you
    gain: where torch keeps all cores busy there is little to be had.

    Args:
        model: with compressed weights on the CPU.
        threads: how many decode; by default as many as there are cores beyond those that torch uses, at least one.

    Returns:
        A handle; its `close`, or the end of its ``with`` statement, ends it.

    Raises:
        ValueError: `threads` is below 1.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"expected threads from 1 on, got {threads}")
    return DecodeAhead(model, threads)
