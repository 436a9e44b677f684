"""A frame in a device's memory: what the host has read of it, and the launch data of its blocks, there."""

from __future__ import annotations

import bisect
import functools
import logging
from collections.abc import Iterator

import numpy as np
import torch

from ..._ground.copies import twin_of
from ...codec import torch_dtype
from .plan import RUN, BlockLaunch, CascadeLaunch, EnecLaunch, Plan, StoredLaunch, host_bytes, plan

_log = logging.getLogger("tensorwire.torch.device")


class PlannedFrame:
    """A plain frame on a device. Immutable: serves many threads at once.

    Blocks that kernels do not decode are decoded by the host now, and stay on the device as words.

    Attributes:
        info: FrameInfo.
        dtype: torch's dtype of the tensor.
        plan: what the host read of it.
        frame: its bytes, as 32-bit words.
        tables: by launch, the launch data of its blocks, ROW numbers each.
        host_words: the words of blocks that the host has decoded, each block at a multiple of 32 bytes.
        runs_per_block: runs of a full block.
        counted_runs: runs of the blocks up to the last one that is coded, for tables of what escapes before each.
        word_nbytes: bytes of a word.
    """

    def __init__(self, frame: torch.Tensor, full_runs: int = 0, overread: int = 0) -> None:
        """Check header, index and descriptors. The last two arguments are those of `plan`."""
        self.plan: Plan = plan(frame, full_runs, overread)
        self.info = self.plan.reader.info
        self.dtype: torch.dtype = torch_dtype(self.info.dtype, self.info.bits)
        self._bytes = frame.detach()  # what keeps this object by the tensor `frame` must not keep that alive
        self.frame = self._bytes.view(torch.uint32)
        self.runs_per_block = self.info.block_words // RUN
        self.word_nbytes = self.info.layout.word_nbytes
        rows = self.plan.rows
        tables = self.to_device(torch.from_numpy(self.plan.table.view(np.int32)))
        self.tables = dict(zip(rows, tables.split_with_sizes([*map(len, rows.values())]), strict=True)) if rows else {}
        coded = [some[-1, 1] for launch, some in rows.items() if isinstance(launch, CascadeLaunch | EnecLaunch)]
        self.counted_runs = (int(max(coded)) + 1) * self.runs_per_block if coded else 0
        self.host_words = self._decode_by_host()

    @functools.cached_property
    def _ordinals(self) -> dict[BlockLaunch, list[int]]:
        return {launch: rows[:, 1].tolist() for launch, rows in self.plan.rows.items()}

    def at(self, frame: torch.Tensor) -> PlannedFrame:
        """The same for a copy of the frame on the same device, whose bytes may come there later."""
        twin = twin_of(self)
        twin._bytes = frame.detach()
        twin.frame = twin._bytes.view(torch.uint32)
        return twin

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, where the frame is."""
        return tensor.to(self._bytes.device)

    def launches(self, begin: int, end: int) -> Iterator[tuple[BlockLaunch, torch.Tensor, int]]:
        """The launches that have any of the blocks [begin, end), with the launch data of these and their number."""
        every = begin == 0 and end == self.info.num_blocks
        for launch, table in self.tables.items():
            if every:
                yield launch, table, len(table)
                continue
            ordinals = self._ordinals[launch]
            lo, hi = bisect.bisect_left(ordinals, begin), bisect.bisect_left(ordinals, end)
            if lo < hi:
                yield launch, table[lo:hi], hi - lo

    def source(self, launch: BlockLaunch) -> torch.Tensor:
        """Where the words of a launch's blocks are, or its blocks."""
        return self.host_words if launch == StoredLaunch(True) else self.frame

    def _decode_by_host(self) -> torch.Tensor:
        if not self.plan.host_blocks:
            return torch.empty(0, dtype=torch.uint32, device=self._bytes.device)
        reader, header_nbytes = self.plan.reader, self.info.header_nbytes
        size = -(-reader.block_nbytes // 32) * 32
        words = torch.zeros(len(self.plan.host_blocks) * size, dtype=torch.uint8)
        for place, block in enumerate(self.plan.host_blocks):
            start = block * reader.block_nbytes
            stop = min(start + reader.block_nbytes, self.info.uncompressed_nbytes)
            lo, hi = reader.data_range(start, stop)
            data = host_bytes(self._bytes[header_nbytes + lo : header_nbytes + hi])
            out = memoryview(words.numpy())[place * size : place * size + stop - start]
            reader.decode(data, out, start=start, stop=stop, data_offset=lo)
        _say_once()
        return self.to_device(words).view(torch.uint32)


@functools.cache
def _say_once() -> None:
    _log.info(
        "the host decodes blocks of a frame on a device, which take as much memory there as dense ones: they are of "
        "kinds that no kernel knows; compress with profile 'fast', 'resident' or 'enec'"
    )
