"""Decode frames on the device that holds them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ...codec import torch_dtype
from ...errors import CorruptDataError
from . import kernels
from .fields import BY_GROUP, OVERREAD, PRMT, SHIFTS
from .plan import (
    RUN,
    CascadeLaunch,
    ConstantLaunch,
    EnecLaunch,
    Launch,
    StoredLaunch,
    host_bytes,
    leading,
    plan,
)

if TYPE_CHECKING:
    from .plan import Plan

_RUNS_OF_WORDS = 4  # that a program of one warp decodes: with more, registers let fewer programs run at once
_LATER_RUNS = 8
_LATER_PROGRAMS = 4096  # among which the later runs of few blocks are shared out
_MOST_PARTS = 8
_BEHIND = 512  # bytes behind the resolved exponents that a group may read
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_STORE_NBYTES = 16


def decode_frame(frame: torch.Tensor) -> torch.Tensor:
    """Decode one frame on the device that holds it; as `DeviceFrame(frame).decode_all()`."""
    return DeviceFrame(frame).decode_all()


class DeviceFrame:
    """A plain frame in the memory of a device, prepared for kernels. Immutable: serves many threads at once.

    Blocks that kernels do not decode are decoded by the host when the frame is opened, and stay on the device as words.

    Attributes:
        info: FrameInfo.
        dtype: torch's dtype of the tensor.
        shape: its shape.
        plan: what the host read of it.
        frame: its bytes, as 32-bit words.
        before: on the device, for each run how many words escape before it in its block, or how many mask bits are
            set in blocks of enec.
        permutation: how kernels permute bytes (fields.py).
        by_group: whether tiles have their elements by group (fields.py).
    """

    def __init__(self, frame: torch.Tensor) -> None:
        """Check header, index, descriptors and counts of escapes. The checksums of blocks are not checked: damaged ones
        may decode to wrong values, but nothing is read outside the frame or written outside the result.

        Args:
            frame: exactly one plain frame: a contiguous one-dimensional tensor of uint8, on the current device (on the
                CPU only with TRITON_INTERPRET=1), at an address that is a multiple of 16.

        Raises:
            UnsupportedTensorError: the frame needs a base, or torch lacks its dtype.
            CorruptDataError, TruncatedDataError, UnsupportedVersionError, LimitExceededError: the frame is not valid.
            ValueError: `frame` is not a tensor of that kind.
        """
        if frame.dtype != torch.uint8 or frame.dim() != 1 or not frame.is_contiguous() or frame.data_ptr() % 16:
            raise ValueError(
                "expected a contiguous tensor of uint8 with one dimension, at a multiple of 16 bytes, got "
                f"{frame.dtype}, shape {tuple(frame.shape)}, strides {frame.stride()}, address {frame.data_ptr():#x}"
            )
        self.by_group = _is_vector_processor(frame.device)
        self.plan: Plan = plan(frame, _RUNS_OF_WORDS, OVERREAD) if self.by_group else plan(frame)
        self.info = self.plan.reader.info
        self.dtype: torch.dtype = torch_dtype(self.info.dtype, self.info.bits)
        self.shape = self.info.shape
        self._bytes = frame.detach()  # what keeps this object by the tensor `frame` must not keep that alive
        self.frame = self._bytes.view(torch.uint32)
        self.permutation = PRMT.value if frame.is_cuda and torch.version.hip is None else SHIFTS.value
        self.runs_per_block = self.info.block_words // RUN
        self.word_nbytes = self.info.layout.word_nbytes
        self._word = _WORDS[self.word_nbytes]
        # In 64 bits: some of the 32-bit numbers are unsigned.
        self._rows = {launch: torch.tensor(rows) for launch, rows in self.plan.rows.items()}
        self._tables = {launch: self.to_device(rows.to(torch.int32)) for launch, rows in self._rows.items()}
        self._ordinals = {launch: [row[1] for row in rows] for launch, rows in self.plan.rows.items()}
        self._host_words = self.to_device(self._decode_by_host()).view(torch.uint32)
        self.before, self._before_later = self._count()

    def lead(self, w: int) -> int:
        """How kernels lay out tiles of a field of `w` bits."""
        return BY_GROUP.value if self.by_group else leading(w)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, where the frame is."""
        return tensor.to(self.frame.device)

    def decode_all(self) -> torch.Tensor:
        """The tensor, new memory on the same device. The kernels run on the current stream and are not waited for."""
        words = self._decode_blocks(0, self.info.num_blocks)[: self.info.uncompressed_nbytes // self.word_nbytes]
        return words.view(self.dtype).reshape(self.shape)

    def decode(self, first: int, out: torch.Tensor) -> None:
        """Decode ``out.numel()`` elements from element `first` on into `out`, contiguous, on the same device.

        Only their blocks are decoded: into `out` itself if that is all of the tensor, else into memory of their own.
        """
        size = out.element_size()
        start, stop = first * size, (first + out.numel()) * size
        if start == stop:
            return
        whole = stop - start == self.info.uncompressed_nbytes
        target = out.reshape(-1).view(torch.uint8)
        if whole and len(target) % (4 * self.word_nbytes) == 0 and target.data_ptr() % _STORE_NBYTES == 0:
            self._launch(0, self.info.num_blocks, target.view(self._word))
            return
        block_nbytes = self.info.block_words * self.word_nbytes
        begin = start // block_nbytes
        words = self._decode_blocks(begin, -(-stop // block_nbytes))
        offset = start - begin * block_nbytes
        target.copy_(words.view(torch.uint8)[offset : offset + stop - start])

    def _decode_blocks(self, begin: int, end: int) -> torch.Tensor:
        """Words of the blocks [begin, end), to a multiple of four."""
        last = self.info.uncompressed_nbytes // self.word_nbytes
        count = min(end * self.info.block_words, last) - begin * self.info.block_words
        words = torch.empty(-(-max(count, 0) // 4) * 4, dtype=self._word, device=self.frame.device)
        self._launch(begin, end, words)
        return words

    def launches(self, begin: int, end: int) -> Iterator[tuple[Launch, torch.Tensor, int]]:
        """The launches that have any of the blocks [begin, end), with the launch data of these and their number."""
        for launch, ordinals in self._ordinals.items():
            lo, hi = bisect.bisect_left(ordinals, begin), bisect.bisect_left(ordinals, end)
            table = self._tables[launch]
            if lo < hi:
                yield launch, table if hi - lo == len(ordinals) else table[lo:hi], hi - lo

    def source(self, launch: Launch) -> torch.Tensor:
        """Where the words of a launch's blocks are, or its blocks."""
        return self._host_words if launch == StoredLaunch(True) else self.frame

    def _launch(self, begin: int, end: int, words: torch.Tensor) -> None:
        layout, word_nbytes = self.info.layout, self.word_nbytes
        groups = words.view(torch.uint32 if word_nbytes == 1 else torch.uint64)
        resolved = self.scratch()
        for launch, table, count in self.launches(begin, end):
            grid = (count, -(-self.runs_per_block // _RUNS_OF_WORDS))
            if isinstance(launch, StoredLaunch | ConstantLaunch):
                copied = (words.view(torch.uint32), begin, self.info.block_words * word_nbytes // 4, word_nbytes)
                kernels.copy_kernel[(count,)](self.source(launch), table, *copied, isinstance(launch, ConstantLaunch))
            else:
                self.resolve(launch, table, count, resolved)
                fields = (layout.exponent_bits, layout.rest_bits - 1)
                arguments = (self.frame, table, self.before, resolved, groups, begin, self.runs_per_block, *fields)
                rest = (launch.rest_bits, launch.trail)
                if isinstance(launch, EnecLaunch):
                    coding: tuple[int, ...] = (launch.quads_log2, launch.m, launch.nb)
                    kernel, w = kernels.enec_words_kernel, launch.m
                else:
                    coding = (launch.packed_widths, len(launch.widths))
                    kernel, w = kernels.cascade_words_kernel, launch.widths[0]
                tail = (launch.whole, self.lead(w), self.permutation, _RUNS_OF_WORDS)
                kernel[grid](*arguments, *rest, *coding, *tail, num_warps=1)

    def scratch(self) -> torch.Tensor:
        """Memory for the exponents of later tiers and for high parts; any if there are none."""
        if not self.plan.later_runs:
            return self.frame
        return torch.empty((self.plan.later_runs * RUN + _BEHIND) // 4, dtype=torch.uint32, device=self.frame.device)

    def resolve(self, launch: CascadeLaunch | EnecLaunch, table: torch.Tensor, count: int, resolved: Any) -> None:
        """Fill the scratch memory as far as blocks of this launch need it, from the last tier to the second."""
        parts = 1 if self.by_group else min(max(1, _LATER_PROGRAMS // count), _MOST_PARTS)
        grid = (count, parts)
        if isinstance(launch, EnecLaunch):
            high_bits = launch.nb - launch.m
            high = (launch.rest_bits, launch.m, high_bits, launch.quads_log2, self.lead(high_bits), _LATER_RUNS)
            kernels.high_kernel[grid](self.frame, table, resolved, *high, num_warps=1)
            return
        widths, last = launch.packed_widths, len(launch.widths)
        for tier in range(last, 1, -1):
            kernels.resolve_kernel[grid](
                self.frame, table, self._before_later, resolved,
                launch.rest_bits, widths, tier, last, self.lead(launch.widths[tier - 1]), self.permutation,
                _LATER_RUNS, num_warps=1,
            )  # fmt: skip

    def _decode_by_host(self) -> torch.Tensor:
        """The words of the blocks that kernels do not decode, each at a multiple of 32 bytes."""
        size = -(-self.plan.reader.block_nbytes // 32) * 32
        words = torch.zeros(len(self.plan.host_blocks) * size, dtype=torch.uint8)
        reader, header_nbytes = self.plan.reader, self.info.header_nbytes
        for place, block in enumerate(self.plan.host_blocks):
            start = block * reader.block_nbytes
            stop = min(start + reader.block_nbytes, self.info.uncompressed_nbytes)
            lo, hi = reader.data_range(start, stop)
            data = host_bytes(self._bytes[header_nbytes + lo : header_nbytes + hi])
            out = memoryview(words.numpy())[place * size : place * size + stop - start]
            reader.decode(data, out, start=start, stop=stop, data_offset=lo)
        return words

    def _count(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables of how much escapes before each run: one for tier 1 and enec's mask, one for later runs.

        Counts are those of the descriptors, or the frame is refused: kernels need not check them again.
        """
        device, per_block = self.frame.device, self.runs_per_block
        first = torch.zeros(self.info.num_blocks * per_block, dtype=torch.int32, device=device)
        later = torch.zeros(self.plan.later_runs, dtype=torch.int32, device=device)
        for launch, table, count in self.launches(0, self.info.num_blocks):
            if isinstance(launch, EnecLaunch):
                enec = (launch.rest_bits, launch.m, launch.quads_log2, self.lead(1), _LATER_RUNS)
                kernels.count_mask_kernel[(count,)](self.frame, table, first, per_block, *enec, num_warps=1)
            elif isinstance(launch, CascadeLaunch):
                for tier in range(1, len(launch.widths) + 1):
                    lead = self.lead(launch.widths[tier - 1])
                    cascade = (launch.rest_bits, launch.packed_widths, tier, lead, _LATER_RUNS)
                    counts = first if tier == 1 else later
                    kernels.count_kernel[(count,)](self.frame, table, counts, per_block, *cascade, num_warps=1)
        first, later = first.cpu().to(torch.int64), later.cpu().to(torch.int64)
        by_block = first.view(-1, per_block) if per_block else first
        before = by_block.cumsum(1) - by_block
        sums = torch.nn.functional.pad(later.cumsum(0), (1, 0))  # before each later run, and of all
        begins = torch.zeros_like(later)
        totals = by_block.sum(1)
        for launch, rows in self._rows.items():
            if isinstance(launch, EnecLaunch):
                _check_high(rows, totals[rows[:, 1]], 4 << launch.quads_log2)
            elif isinstance(launch, CascadeLaunch):
                _check_tiers(rows, totals[rows[:, 1]], len(launch.widths), sums, begins)
        # Sums do not decrease, so the greatest of those at the begins of tiers is that of the run's own tier.
        before_later = sums[:-1] - begins.cummax(0).values if len(later) else later
        return self.to_device(before.reshape(-1).to(torch.int16)), self.to_device(before_later.to(torch.int16))


def _is_vector_processor(device: torch.device) -> bool:
    return str(device.type) == "npu"


def _check_high(rows: torch.Tensor, groups: torch.Tensor, group: int) -> None:
    """The last group may be short."""
    n, num_high = rows[:, 2], rows[:, 4]
    all_full = groups * group
    wrong = (num_high != all_full) & ((groups == 0) | (num_high != all_full - (-n % group)))
    for k in wrong.nonzero()[:1, 0].tolist():
        raise CorruptDataError(
            f"expected high parts for {groups[k]} groups of {group}, got {num_high[k]}", block=int(rows[k, 1])
        )


def _check_tiers(
    rows: torch.Tensor, escaped: torch.Tensor, tiers: int, sums: torch.Tensor, begins: torch.Tensor
) -> None:
    """What escapes from each tier must be as much as the next one holds. Write to `begins` the sum before the first run
    of each later tier."""
    pairs = rows[:, 4:7, None] >> torch.tensor([0, 16])
    counts = (pairs & 0xFFFF).flatten(1)[:, :tiers]
    runs = (counts[:, :-1] + RUN - 1) // RUN
    starts = rows[:, 7:] + runs.cumsum(1) - runs
    totals = torch.cat([escaped[:, None], sums[starts + runs] - sums[starts]], 1)
    for k, tier in (totals != counts).nonzero()[:1].tolist():
        raise CorruptDataError(
            f"expected {counts[k, tier]} escapes in tier {tier + 1} by its descriptor, got {totals[k, tier]}",
            block=int(rows[k, 1]),
        )
    some = runs > 0
    begins[starts[some]] = sums[starts[some]]
