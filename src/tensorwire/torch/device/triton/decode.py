"""Decode frames on the device that holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...._ground.copies import twin_of
from ....errors import CorruptDataError
from ..plan import RUN, CascadeLaunch, ConstantLaunch, EnecLaunch, StoredLaunch, leading
from . import kernels
from .fields import BY_GROUP, OVERREAD

if TYPE_CHECKING:
    from ..planned import PlannedFrame

_RUNS_OF_WORDS = 4  # that a program of one warp decodes: with more, registers let fewer programs run at once
_LATER_RUNS = 8
_LATER_PROGRAMS = 4096  # among which the later runs of few blocks are shared out
_MOST_PARTS = 8
_BEHIND = 512  # bytes behind the resolved exponents that a group may read


class TritonKernels:
    """Triton's kernels for a frame: they run on the current stream, and with TRITON_INTERPRET=1 in the environment,
    before Triton is first imported, on tensors in CPU memory.

    Attributes:
        before: on the device, for each run how many words escape before it in its block, or how many mask bits are
            set in blocks of enec.
        by_group: whether tiles have their elements by group (fields.py).
        rows: None: the host looks for the blocks of rows.
    """

    rows: None = None

    def __init__(self, held: PlannedFrame) -> None:
        """Raises CorruptDataError if counts of escapes are not those of the descriptors."""
        self._held = held
        self.by_group = _is_vector_processor(held.frame.device)
        self.before, self._before_later = self._count()

    def at(self, held: PlannedFrame) -> TritonKernels:
        """The same for a copy of the frame. Nothing is counted anew."""
        twin = twin_of(self)
        twin._held = held
        return twin

    @staticmethod
    def limits(device: torch.device) -> tuple[int, int]:
        """What `plan` needs to know of the kernels: `full_runs` and `overread`."""
        return (_RUNS_OF_WORDS, OVERREAD) if _is_vector_processor(device) else (0, 0)

    def lead(self, w: int) -> int:
        """How kernels lay out tiles of a field of `w` bits."""
        return BY_GROUP.value if self.by_group else leading(w)

    def decode(self, begin: int, end: int, words: torch.Tensor) -> None:
        """Decode the blocks [begin, end) to `words`, at a multiple of 16 bytes; their number is a multiple of four."""
        held = self._held
        layout, word_nbytes = held.info.layout, held.word_nbytes
        groups = words.view(torch.uint32 if word_nbytes == 1 else torch.uint64)
        resolved = self._scratch()
        for launch, table, count in held.launches(begin, end):
            grid = (count, -(-held.runs_per_block // _RUNS_OF_WORDS))
            if isinstance(launch, StoredLaunch | ConstantLaunch):
                copied = (words.view(torch.uint32), begin, held.info.block_words * word_nbytes // 4, word_nbytes)
                kernels.copy_kernel[(count,)](held.source(launch), table, *copied, isinstance(launch, ConstantLaunch))
            else:
                self._resolve(launch, table, count, resolved)
                fields = (layout.exponent_bits, layout.rest_bits - 1)
                arguments = (held.frame, table, self.before, resolved, groups, begin, held.runs_per_block, *fields)
                rest = (launch.rest_bits, launch.trail)
                if isinstance(launch, EnecLaunch):
                    coding: tuple[int, ...] = (launch.quads_log2, launch.m, launch.nb)
                    kernel, w = kernels.enec_words_kernel, launch.m
                else:
                    coding = (launch.packed_widths, len(launch.widths))
                    kernel, w = kernels.cascade_words_kernel, launch.widths[0]
                tail = (launch.whole, self.lead(w), _RUNS_OF_WORDS)
                kernel[grid](*arguments, *rest, *coding, *tail, num_warps=1)

    def _scratch(self) -> torch.Tensor:
        """Memory for the exponents of later tiers and for high parts; any if there are none."""
        held = self._held
        if not held.plan.later_runs:
            return held.frame
        return torch.empty((held.plan.later_runs * RUN + _BEHIND) // 4, dtype=torch.uint32, device=held.frame.device)

    def _resolve(self, launch: CascadeLaunch | EnecLaunch, table: torch.Tensor, count: int, resolved: Any) -> None:
        """Fill the scratch memory as far as blocks of this launch need it, from the last tier to the second."""
        held = self._held
        parts = 1 if self.by_group else min(max(1, _LATER_PROGRAMS // count), _MOST_PARTS)
        grid = (count, parts)
        if isinstance(launch, EnecLaunch):
            high_bits = launch.nb - launch.m
            high = (launch.rest_bits, launch.m, high_bits, launch.quads_log2, self.lead(high_bits), _LATER_RUNS)
            kernels.high_kernel[grid](held.frame, table, resolved, *high, num_warps=1)
            return
        widths, last = launch.packed_widths, len(launch.widths)
        for tier in range(last, 1, -1):
            kernels.resolve_kernel[grid](
                held.frame, table, self._before_later, resolved,
                launch.rest_bits, widths, tier, last, self.lead(launch.widths[tier - 1]),
                _LATER_RUNS, num_warps=1,
            )  # fmt: skip

    def _count(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables of how much escapes before each run: one for tier 1 and enec's mask, one for later runs.

        Counts are those of the descriptors, or the frame is refused: kernels need not check them again.
        """
        held = self._held
        device, per_block = held.frame.device, held.runs_per_block
        first = torch.zeros(held.counted_runs, dtype=torch.int32, device=device)
        later = torch.zeros(held.plan.later_runs, dtype=torch.int32, device=device)
        for launch, table, count in held.launches(0, held.info.num_blocks):
            if isinstance(launch, EnecLaunch):
                enec = (launch.rest_bits, launch.m, launch.quads_log2, self.lead(1), _LATER_RUNS)
                kernels.count_mask_kernel[(count,)](held.frame, table, first, per_block, *enec, num_warps=1)
            elif isinstance(launch, CascadeLaunch):
                for tier in range(1, len(launch.widths) + 1):
                    lead = self.lead(launch.widths[tier - 1])
                    cascade = (launch.rest_bits, launch.packed_widths, tier, lead, _LATER_RUNS)
                    counts = first if tier == 1 else later
                    kernels.count_kernel[(count,)](held.frame, table, counts, per_block, *cascade, num_warps=1)
        first, later = first.cpu().to(torch.int64), later.cpu().to(torch.int64)
        by_block = first.view(-1, per_block) if per_block else first
        before = by_block.cumsum(1) - by_block
        sums = torch.nn.functional.pad(later.cumsum(0), (1, 0))  # before each later run, and of all
        begins = torch.zeros_like(later)
        totals = by_block.sum(1)
        # In 64 bits: some of the 32-bit numbers are unsigned.
        rows_of = {launch: torch.from_numpy(rows.astype(np.int64)) for launch, rows in held.plan.rows.items()}
        for launch, rows in rows_of.items():
            if isinstance(launch, EnecLaunch):
                _check_high(rows, totals[rows[:, 1]], 4 << launch.quads_log2)
            elif isinstance(launch, CascadeLaunch):
                _check_tiers(rows, totals[rows[:, 1]], len(launch.widths), sums, begins)
        # Sums do not decrease, so the greatest of those at the begins of tiers is that of the run's own tier.
        before_later = sums[:-1] - begins.cummax(0).values if len(later) else later
        return held.to_device(before.reshape(-1).to(torch.int16)), held.to_device(before_later.to(torch.int16))


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
