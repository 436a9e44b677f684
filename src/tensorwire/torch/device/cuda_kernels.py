"""The kernels in CUDA C++ for a frame: what is made of it once, and its launches, whose arguments are packed once."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import CorruptDataError
from .driver import Kernel
from .plan import ROW, CascadeLaunch, ConstantLaunch, EnecLaunch, Launch, StoredLaunch, counts_of

if TYPE_CHECKING:
    from .driver import Driver
    from .prepared import PreparedFrame

_THREADS_TO_OPEN = 128  # open.cuh
_THREADS = 256
_COPIED_NBYTES = 1 << 14  # of a block, by the threads of one part
_RIGHT = -1
_PIECE = 16 * 256  # words of a row that a block of threads takes at a time (rows.cuh)
_MOST_PARTS = 8
_STORED, _BY_HOST, _CONSTANT, _CASCADE, _ENEC = range(5)  # rows.cuh
_WORDS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


class Call:
    """A kernel with its arguments packed, of which a few change from one launch to the next.

    Attributes:
        values: by the names of parameters; `value` of each may be set.
    """

    def __init__(self, driver: Driver, kernel: Kernel, threads: int, shared_nbytes: int = 0, **arguments: Any) -> None:
        """`arguments`, by the names and in the order of the kernel's parameters: tensors, of which the address is taken
        and which somebody else keeps alive, integers of 32 bits, and whatever ctypes has for others."""
        self._function = driver.function(kernel, shared_nbytes)
        self._threads = threads
        self._shared_nbytes = shared_nbytes
        self.values = {
            name: ctypes.c_uint64(each.data_ptr()) if isinstance(each, torch.Tensor)
            else ctypes.c_uint32(each) if isinstance(each, int)
            else each
            for name, each in arguments.items()
        }  # fmt: skip
        self._packed = (ctypes.c_void_p * len(self.values))(*map(ctypes.addressof, self.values.values()))

    def launch(self, stream: int, x: int, y: int = 1, **changed: int) -> None:
        """With a grid of `x` times `y` blocks of threads, and other values of some arguments."""
        for name, value in changed.items():
            self.values[name].value = value
        self._function.launch((x, y, 1), self._threads, self._shared_nbytes, stream, self._packed)


class CudaKernels:
    """Those of a prepared frame. They run on the current stream, and the host waits for none.

    Attributes:
        before: on the device, for each run of tier 1 how many words escape before it in its block, or how many mask
            bits are set in blocks of enec.
        before_later: for each later run, how many escape before it in its tier.
    """

    def __init__(self, held: PreparedFrame, driver: Driver) -> None:
        """Compile the kernels, unless that was done before, and count escapes.

        Raises:
            CorruptDataError: counts are not those of the descriptors.
        """
        self._held = held
        self._driver = driver
        self._lock = threading.Lock()  # of what is packed
        device = held.frame.device
        self.before = torch.empty(held.info.num_blocks * held.runs_per_block, dtype=torch.int16, device=device)
        self.before_later = torch.empty(held.plan.later_runs, dtype=torch.int16, device=device)
        self._count()
        self._calls = {launch: self._call(launch) for launch in held.tables}
        shape = held.info.shape
        self._row_nwords = held.info.uncompressed_nbytes // held.word_nbytes // max(1, *shape[:1])
        self._taking: Call | None = None

    def decode(self, begin: int, end: int, words: torch.Tensor) -> None:
        """Decode the blocks [begin, end) to `words`, at a multiple of 16 bytes."""
        stream, out = self._driver.stream(), words.data_ptr()
        with self._lock:
            for launch, table, count in self._held.launches(begin, end):
                call, parts = self._calls[launch]
                call.launch(stream, count, parts, rows=table.data_ptr(), out=out, first_block=begin)

    def rows(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        """Write rows of the tensor to `out`, contiguous: those of these numbers, int64 or int32, on the device. Numbers
        below 0 count from the end. A row for a number that is out of range is all ones: the host does not wait to tell.
        """
        if not out.numel():
            return
        ids, parts = ids.contiguous(), min(-(-self._row_nwords // _PIECE), _MOST_PARTS)
        with self._lock:
            if self._taking is None:
                self._taking = self._take_rows()
            self._taking.launch(
                self._driver.stream(), ids.numel(), parts,
                ids=ids.data_ptr(), out=out.data_ptr(), id_nbytes=ids.element_size(),
            )  # fmt: skip

    def _count(self) -> None:
        """Fill the tables of counts: one launch for each of the plan's, and one flag that comes back. That waits: what
        uses the tables may run on another stream."""
        held, stream = self._held, self._driver.stream()
        wrong = torch.full((1,), _RIGHT, dtype=torch.int64, device=held.frame.device)
        for launch, table in held.tables.items():
            if isinstance(launch, CascadeLaunch):
                kernel = Kernel("open.cuh", "count_escapes")
                tables = {"before": self.before, "before_later": self.before_later}
                coding = {"rest_bits": launch.rest_bits, "widths": launch.packed_widths}
            elif isinstance(launch, EnecLaunch):
                kernel = Kernel("open.cuh", "count_mask")
                tables = {"before": self.before}
                coding = {"rest_bits": launch.rest_bits, "m": launch.m, "quads_log2": launch.quads_log2}
            else:
                continue
            call = Call(
                self._driver, kernel, _THREADS_TO_OPEN, frame=held.frame, rows=table, **tables, wrong=wrong,
                runs_per_block=held.runs_per_block, **coding,
            )  # fmt: skip
            call.launch(stream, len(table))
        found = int(wrong.item())
        if found != _RIGHT:
            raise self._wrong(found >> 32, found >> 24 & 0xFF, found & 0xFFFFFF)

    def _wrong(self, ordinal: int, tier: int, counted: int) -> CorruptDataError:
        for launch, rows in self._held.plan.rows.items():
            for row in rows[rows[:, 1] == ordinal]:
                if isinstance(launch, EnecLaunch):
                    message = f"expected {counted} high parts by the mask, got {row[4]}"
                else:
                    claimed = counts_of(row[None])[0, tier - 1]
                    message = f"expected {claimed} escapes in tier {tier} by its descriptor, got {counted}"
        return CorruptDataError(message, block=ordinal)

    def _call(self, launch: Launch) -> tuple[Call, int]:
        """What decodes the blocks of a launch, and in how many parts each. The launch data, the words and the first
        block are set when it is launched."""
        held, nothing = self._held, self._held.frame
        block_nbytes = held.info.block_words * held.word_nbytes
        if isinstance(launch, StoredLaunch | ConstantLaunch):
            copies = isinstance(launch, StoredLaunch)
            source = {"source": held.source(launch)} if copies else {}
            call = Call(
                self._driver, Kernel("copy.cuh", "copy_blocks" if copies else "fill_blocks"), _THREADS, **source,
                rows=nothing, out=nothing, first_block=0, block_nbytes=block_nbytes, word_nbytes=held.word_nbytes,
            )  # fmt: skip
            return call, min(max(1, block_nbytes // _COPIED_NBYTES), _MOST_PARTS)
        raise NotImplementedError

    def _take_rows(self) -> Call:
        """What takes rows. It needs launch data and codings of all blocks by ordinal, on the device."""
        held, layout = self._held, self._held.info.layout
        rows = np.zeros((held.info.num_blocks, ROW), np.uint32)
        codings = np.zeros((held.info.num_blocks, 2), np.uint32)
        for launch, some in held.plan.rows.items():
            rows[some[:, 1]] = some
            codings[some[:, 1]] = _coding(launch)
        self._by_ordinal = held.to_device(
            torch.from_numpy(np.concatenate([rows.ravel(), codings.ravel()]).view(np.int32))
        )
        on_device = self._by_ordinal.split([rows.size, codings.size])
        self._out_of_range = torch.full((1,), _RIGHT, dtype=torch.int64, device=held.frame.device)
        num_rows = held.info.uncompressed_nbytes // held.word_nbytes // self._row_nwords
        return Call(
            self._driver, Kernel("rows.cuh", f"take_rows<{_WORDS[held.word_nbytes]}>"), _THREADS,
            frame=held.frame, host_words=held.host_words, rows=on_device[0], codings=on_device[1],
            before=self.before, before_later=self.before_later, ids=on_device[0], out=on_device[0],
            wrong=self._out_of_range, num_rows=ctypes.c_uint64(num_rows), row_nwords=ctypes.c_uint64(self._row_nwords),
            id_nbytes=0, block_nwords=held.info.block_words, exponent_bits=layout.exponent_bits,
            rest_bits=layout.rest_bits,
        )  # fmt: skip


def _coding(launch: Launch) -> tuple[int, int]:
    """How blocks of a launch are coded, as rows.cuh has it."""
    if isinstance(launch, StoredLaunch):
        return (_BY_HOST if launch.by_host else _STORED), 0
    if isinstance(launch, ConstantLaunch):
        return _CONSTANT, 0
    kind = _CASCADE if isinstance(launch, CascadeLaunch) else _ENEC
    if isinstance(launch, CascadeLaunch):
        numbers = launch.packed_widths
    else:
        numbers = launch.m | launch.nb << 4 | launch.quads_log2 << 8
    return kind | launch.rest_bits << 8 | launch.trail << 16, numbers
