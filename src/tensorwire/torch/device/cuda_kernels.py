"""The kernels in CUDA C++ for a frame: what is made of it once, and its launches, whose arguments are packed once."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..._ground.copies import not_copied, twin_of
from ...errors import CorruptDataError
from .driver import Kernel
from .plan import (
    LISTED,
    ROW,
    Array,
    BlockLaunch,
    CascadeLaunch,
    ConstantLaunch,
    EnecLaunch,
    StoredLaunch,
    counts_of,
    field_nbytes,
    most_counts_of,
    room_nbytes,
)

if TYPE_CHECKING:
    from .driver import Driver
    from .planned import PlannedFrame

_THREADS_TO_OPEN, _THREADS = 128, 256
_COPIED_NBYTES = 1 << 14  # of a block, by the threads of one part
_SHARED_RUNS = 16  # of a block, that one part decodes at least
_MOST_PARTS = 8
_RIGHT = -1
_PIECE = 16 * 256  # words of a row that a block of threads takes at a time (rows.cuh)
_MOST_LISTED_WORDS = 1 << 16  # of a block (open.cuh)
_STEPS = 2
_STORED, _BY_HOST, _CONSTANT, _CASCADE, _ENEC = range(5)  # rows.cuh
_WORDS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_LAYOUTS = {(2, 8): "Bf16", (2, 5): "F16", (4, 8): "F32", (1, 4): "F8E4M3", (1, 5): "F8E5M2"}


class PackedKernel:
    """A kernel with its arguments packed, of which a few change from one launch to the next."""

    __reduce_ex__ = not_copied("addresses on a device", "open the frame again")

    def __init__(
        self, driver: Driver, kernel: Kernel, threads: int, shared_nbytes: int = 0, **arguments: torch.Tensor | int
    ) -> None:
        """`arguments`, by the names and in the order of the kernel's parameters: tensors, of which the address is taken
        and which the caller keeps alive, and integers of 32 bits, which are the lower halves of their places."""
        self._function = driver.function(kernel, shared_nbytes)
        self._threads = threads
        self._shared_nbytes = shared_nbytes
        self._names = list(arguments)
        values = [each if isinstance(each, int) else each.data_ptr() for each in arguments.values()]
        self._values = (ctypes.c_uint64 * len(values))(*values)
        begin = ctypes.addressof(self._values)
        self._packed = (ctypes.c_void_p * len(values))(*range(begin, begin + ctypes.sizeof(self._values), 8))

    def launch(self, stream: int, x: int, y: int = 1, **changed: int) -> None:
        """With a grid of `x` times `y` blocks of threads, and other values of some arguments."""
        for name, value in changed.items():
            self._values[self._names.index(name)] = value
        self._function.launch((x, y, 1), self._threads, self._shared_nbytes, stream, self._packed)


class CudaKernels:
    """The kernels of a planned frame. They run on the current stream, and the host waits for none.

    Attributes:
        before: on the device, for each run of tier 1 how many words escape before it in its block, or how many mask
            bits are set in blocks of enec.
        before_later: for each later run, how many escape before it in its tier.
    """

    __reduce_ex__ = not_copied("addresses on a device", "open the frame again")

    def __init__(self, held: PlannedFrame, driver: Driver) -> None:
        """Compile the kernels, unless that was done before, and count escapes.

        Raises:
            CorruptDataError: counts are not those of the descriptors.
        """
        self._held = held
        self._driver = driver
        self._lock = threading.Lock()  # of what is packed
        device = held.frame.device
        self.before = torch.empty(held.counted_runs, dtype=torch.int16, device=device)
        self.before_later = torch.empty(held.plan.later_runs, dtype=torch.int16, device=device)
        self._places = self.before  # where words escape, in their blocks, once there is a list
        self._count()
        self._calls = {launch: self._call(launch) for launch in held.tables}
        shape = held.info.shape
        self._row_nwords = held.info.uncompressed_nbytes // held.word_nbytes // max((1, *shape[:1]))
        self._taking: PackedKernel | None = None

    def at(self, held: PlannedFrame) -> CudaKernels:
        """The same for a copy of the frame. Nothing is counted anew."""
        twin = twin_of(self)
        twin._held, twin._lock, twin._taking = held, threading.Lock(), None
        twin._calls = {launch: twin._call(launch) for launch in held.tables}
        return twin

    def decode(self, begin: int, end: int, words: torch.Tensor) -> None:
        """Decode the blocks [begin, end) to `words`, at a multiple of 16 bytes."""
        stream, out = self._driver.stream(), words.data_ptr()
        with self._lock:
            for launch, table, count in self._held.launches(begin, end):
                call, scratch_nbytes = self._calls[launch]
                parts = self._parts(launch, count)
                changed = {"rows": table.data_ptr(), "out": out, "first_block": begin}
                if scratch_nbytes:
                    scratch = torch.empty(count * parts * scratch_nbytes, dtype=torch.uint8, device=words.device)
                    changed["scratch"] = scratch.data_ptr()
                call.launch(stream, count, parts, **changed)

    @property
    def rows(self) -> Callable[[torch.Tensor, torch.Tensor], None] | None:
        """What writes rows, see `_rows`; None for a tensor that has none, or more words than the kernel counts."""
        num_words = self._held.info.uncompressed_nbytes // self._held.word_nbytes
        return self._rows if self._held.info.shape and 0 < num_words < 1 << 32 else None

    def _rows(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        """Write rows of the tensor to `out`, contiguous: those of these numbers, int64 or int32, on the device. Numbers
        below 0 count from the end. A row for a number that is out of range is all ones: the host does not wait to tell.
        """
        if not ids.numel():
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
        """Fill the tables: one launch for each of the plan's, one more if there is a list, and a flag that comes back.
        That waits, since what uses the tables may run on another stream."""
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
            call = PackedKernel(
                self._driver, kernel, _THREADS_TO_OPEN, frame=held.frame, rows=table, **tables, wrong=wrong,
                runs_per_block=held.runs_per_block, **coding,
            )  # fmt: skip
            call.launch(stream, table.shape[0])
            if isinstance(launch, CascadeLaunch) and self._has_list(launch):
                self._places = self.list_escapes(launch)
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

    def list_escapes(self, launch: CascadeLaunch, *, exponents: bool = False, overread: int = 0) -> torch.Tensor:
        """What escapes from the blocks of a launch in tier shape (4), `overread` zeros behind it. The launch data say
        where each block's list begins. An entry is the place of a word in its block; with `exponents`, that in its run
        and the exponent, a byte each."""
        held, table = self._held, self._held.tables[launch]
        found = torch.zeros(held.plan.listed + overread, dtype=torch.int16, device=held.frame.device)
        call = PackedKernel(
            self._driver, Kernel("open.cuh", "list_escapes"), _THREADS_TO_OPEN, frame=held.frame, rows=table,
            before=self.before, list=found, runs_per_block=held.runs_per_block, rest_bits=launch.rest_bits,
            exponents=int(exponents),
        )  # fmt: skip
        call.launch(self._driver.stream(), len(table))
        return found

    def _call(self, launch: BlockLaunch) -> tuple[PackedKernel, int]:
        """What decodes the blocks of a launch, and how many bytes of memory a block of threads needs for that, if
        shared memory has too few. The launch data, the words and the first block are set when it is launched."""
        held, nothing = self._held, self._held.frame
        block_nbytes = held.info.block_words * held.word_nbytes
        tail = {"first_block": 0, "runs_per_block": held.runs_per_block}
        if isinstance(launch, StoredLaunch | ConstantLaunch):
            name, source = "fill_blocks", {}
            if isinstance(launch, StoredLaunch):
                name, source = "copy_blocks", {"source": held.source(launch)}
            kernel = Kernel("copy.cuh", f"{name}<{held.word_nbytes}>")
            arguments = {**source, "rows": nothing, "out": nothing, "first_block": 0, "block_nbytes": block_nbytes}
            return PackedKernel(self._driver, kernel, _THREADS, **arguments), 0
        layout = _LAYOUTS[held.word_nbytes, held.info.layout.exponent_bits]
        coded = {"frame": held.frame, "rows": nothing, "before": self.before}
        whole = str(launch.whole).lower()
        rest = f"{layout}, {launch.rest_bits}, {launch.trail}"
        if isinstance(launch, EnecLaunch):
            coding = f"{launch.quads_log2}, {launch.m}, {launch.nb}"
            kernel = Kernel("enec.cuh", f"enec_words<{rest}, {coding}, {whole}>")
            return PackedKernel(self._driver, kernel, _THREADS, **coded, out=nothing, **tail), 0
        if self._has_list(launch):
            coded["before"], kernel = self._places, Kernel("words.cuh", f"resident_words<{layout}, {_STEPS}>")
            return PackedKernel(self._driver, kernel, _THREADS, **coded, out=nothing, **tail), 0
        most_nbytes = _later_nbytes(held.plan.rows[launch], launch.widths)
        in_shared = most_nbytes <= self._driver.shared_nbytes
        place = "InShared" if in_shared else "InScratch"
        kernel = Kernel("words.cuh", f"cascade_words<{rest}, {launch.packed_widths:#x}, {whole}, {place}>")
        call = PackedKernel(
            self._driver, kernel, _THREADS, most_nbytes if in_shared else 0, **coded, before_later=self.before_later,
            out=nothing, scratch=nothing, **tail, room_nbytes=most_nbytes,
        )  # fmt: skip
        return call, 0 if in_shared else most_nbytes

    def _has_list(self, launch: CascadeLaunch) -> bool:
        """Whether a list of escapes serves: full runs of words of 16 bits whose rest is verbatim, in blocks in which 16
        bits name each place."""
        held = self._held
        if held.word_nbytes != 2 or held.info.block_words > _MOST_LISTED_WORDS:
            return False
        return launch == CascadeLaunch(held.info.layout.rest_bits, 0, LISTED, True)

    def _parts(self, launch: BlockLaunch, count: int) -> int:
        """How many blocks of threads share a block out, if there are `count` blocks. One with later tiers is shared
        only if processors have nothing to do, since each part resolves these anew."""
        if isinstance(launch, StoredLaunch | ConstantLaunch):
            most, wanted = self._held.info.block_words * self._held.word_nbytes // _COPIED_NBYTES, _MOST_PARTS
        else:
            most = self._held.runs_per_block // _SHARED_RUNS
            wanted = self._driver.num_processors // count
        return max(1, min(most, wanted, _MOST_PARTS))

    def _take_rows(self) -> PackedKernel:
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
        num_rows = held.info.uncompressed_nbytes // held.word_nbytes // self._row_nwords
        return PackedKernel(
            self._driver, Kernel("rows.cuh", f"take_rows<{_WORDS[held.word_nbytes]}>"), _THREADS,
            frame=held.frame, host_words=held.host_words, rows=on_device[0], codings=on_device[1],
            before=self.before, before_later=self.before_later, ids=on_device[0], out=on_device[0],
            num_rows=num_rows, row_nwords=self._row_nwords,
            id_nbytes=0, block_nwords=held.info.block_words, exponent_bits=layout.exponent_bits,
            rest_bits=layout.rest_bits,
        )  # fmt: skip


def _later_nbytes(rows: Array, widths: tuple[int, ...]) -> int:
    """Bytes that the later tiers of a block take while it is decoded, for any of the blocks: see words.cuh."""
    counts = most_counts_of(rows)
    streams = sum(field_nbytes(count, w) for count, w in zip(counts, (*widths[1:], 8), strict=False))
    return sum(map(room_nbytes, (streams, *counts[: len(widths) - 1])))


def _coding(launch: BlockLaunch) -> tuple[int, int]:
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
