"""Instructions a word, registers and spills of the kernels in CUDA C++: python -m benchmarks.device.counts.

They are compiled by NVRTC, as they are when they are used, for architectures that need not be here. Instructions are
those of the machine code for sm_90, as often as the loops are taken that they are in; what branches skip counts too.
A thread's are divided by the words that it makes, in a block of 32,768 normal weights as the encoder makes it.

A new kernel goes into KERNELS. A loop that is new, or gone, is told.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import environment, pages
from benchmarks.device.machine_code import Listing, Some, Tools
from benchmarks.tables import filled
from tensorwire.torch.device.driver import Kernel
from tensorwire.torch.device.writing.new_frames import STEPS_NBYTES, tiers_room_nbytes

ARCHITECTURES = (80, 90, 100)
_COUNTED = 90
PAGE = environment.RESULTS / "device-counts.md"
_WORDS = 32_768
_WARPS = 8
_RUN = 256
LATER = (8976, 5144, 2586, 389)
"""Numbers in the second and later tiers of such a block in profile `fast`, the last one as bytes left out."""
_GROUP_NBYTES = 4 * 9216  # of a warpgroup
_SLOTS_NBYTES = 13 << 10  # of shared memory, for each warp that multiplies
_COPIED_NBYTES, _ROOM_NBYTES = 2664, 20 << 10
"""Their streams, and what they need of shared memory."""
FAST_LATER = (8976, 1336, 12)
"""The same of such a block as a device encodes it: in tiers 2 and 3, and bytes."""
_FAST_NBYTES = 43744
"""What it takes."""
_FAST_SHARED_NBYTES = tiers_room_nbytes(_WORDS) + 47168
"""Shared memory for the encoder, and for the block."""
_TILE_WORDS = 16 * 4096
"""Words of a tile of a matrix with 4096 columns, two blocks."""
_RESOLVED_NBYTES, _TEAMS_NBYTES = 9264, 25504
"""What a block of such a tile needs of shared memory once it is resolved, and what two need that are under way."""
_ESCAPED_NBYTES = 960
"""The same of a block in F16 with one tier of 3 bits, of which 680 bytes escape."""

_ESCAPED_PAIRS = 5
"""Pairs of runs of such a block, of 64, in which a word escapes from 15 exponents."""
_ESCAPED_RUNS = 5
"""Runs of such a block, of 128, in which one does."""
_PAGE_NBYTES = 49_344
"""Its bytes."""
_PAGE_SHARED_NBYTES = 4096 + 9392
_BLOCK_NBYTES, _WRITTEN_SHARED_NBYTES = 49_184, 3328 + 51_264
"""The bytes of a block of a longer tensor, and what its kernel needs."""


@dataclass(frozen=True)
class Counted:
    """A kernel, and what a block of threads does.

    Attributes:
        what: its name in the table.
        kernel: the instance.
        threads: of a block.
        words: that a block makes, or multiplies by.
        loops: how often each loop of the machine code for sm_90 is taken, in the order in which they begin, whenever
            the code around it runs. The mean over warps.
        shared_nbytes: that a launch asks for.
        going_on: which part of the warps goes on behind each EXIT that some take; all, where nothing is said.
        stack_nbytes: that a thread may have in local memory.
        most: instructions a word that are allowed, all included; None if the kernel's are not counted.
        at_once: blocks that a processor of sm_90 must have room for.
    """

    what: str
    kernel: Kernel
    threads: int
    words: float = 0
    loops: tuple[float | Some, ...] = ()
    shared_nbytes: int = 0
    going_on: tuple[float, ...] = ()
    stack_nbytes: int = 0
    most: float | None = None
    at_once: int = 1


def _warp_trips(numbers: int, runs_at_once: int) -> float:
    """How often a warp takes the loop over a tier's runs."""
    runs = -(-numbers // _RUN)
    return -(-runs // runs_at_once) / _WARPS


def _resolving() -> tuple[float, ...]:
    """The loops over tiers 5 to 2, of widths 3, 2, 1, 1, and the last over the words of tier 1."""
    tiers = (_warp_trips(LATER[t], at_once) for t, at_once in ((3, 2), (2, 2), (1, 4), (0, 4)))
    return (*tiers, _warp_trips(_WORDS, 4))


def _resolving_in_turn() -> tuple[float, ...]:
    """The loops over a tier's runs, of widths 1, 2, 3, each time one of four tiers is resolved by half of the warps."""
    trips = ((0, 1), 4), ((2,), 2), ((3,), 2)
    return tuple(sum(2 * _warp_trips(LATER[t], at_once) for t in tiers) / 4 for tiers, at_once in trips)


def _of_pages() -> tuple[float, ...]:
    """The loops of a page that is encoded with all hashes."""
    pairs = _WORDS // _RUN // 2
    once = 1 / _WARPS  # by one warp
    sampled, whole, uncoded = 0, 0, (0, 0, 0, 0)  # few words; equal ones; sums of those that have no digits
    escaped = _ESCAPED_PAIRS / _WARPS
    encoded = pairs / 2 / _WARPS, 0, escaped, escaped, 2 * once  # by two and one; lists, copied; the descriptor
    others = once, 0, 0, 0, 1  # sums of the last stripe; stored and equal words; padding
    sums = _PAGE_NBYTES // 1024 / _WARPS, once, 1, 0
    chain = divmod(pairs - 1, 8)
    return sampled, whole, *uncoded, *encoded, *others, *sums, 0, 0, 3, *chain


def _written(what: str, *, hashes: bool, most: float) -> Counted:
    """A block of a tensor that is written to its place, with its checksum or without."""
    pairs, once = _WORDS // _RUN // 2, 1 / _WARPS  # once: by one warp
    # Few words; equal ones; such as have no digits; and where memory has no room for digits, their escapes.
    sampled, constant, stored = 0, 0, (0, 0, 0)
    encoded = pairs / 2 / _WARPS, 0, Some(_ESCAPED_PAIRS / _WARPS, 1), Some(2 * once, 1)  # two, one; lists; the tail
    sums, chain = (0, 0, 0, 0), (0, 0, 0)
    if hashes:
        sums = (_BLOCK_NBYTES // 1024 / _WARPS, once, 1, 0)  # whole pieces, and the last one
        chain = (0, Some(once, 6), 0)  # eight of 48 pieces at a time
    copies = (0, 0, _BLOCK_NBYTES // 4096 / 4, once)  # of stored words; of what is coded, four at a time, the last ones
    place, leaf = (once, 1), (0,) * 7  # where blocks before it end
    loops = (sampled, constant, *encoded, *stored, *sums, *place, *chain, *copies, *leaf)
    kernel, going_on = Kernel("write_blocks.cuh", "write_blocks<Resident<Bf16>>"), (1, 1, 1, once, 0, 0)
    return Counted(what, kernel, 256, _WORDS, loops, _WRITTEN_SHARED_NBYTES, going_on, most=most, at_once=4)


def _hashed_leaf() -> Counted:
    """A leaf of 65,536 words, by the same kernel."""
    once = 1 / _WARPS
    loops = (*(0,) * 22, 127 / _WARPS, Some(once, 1), 1, 0, 0, Some(once, 15), Some(once, 7))
    kernel, going_on = Kernel("write_blocks.cuh", "write_blocks<Resident<Bf16>>"), (1, 1, 1, 1, once, 1)
    what = "hash a leaf beside blocks"
    return Counted(what, kernel, 256, 2 * _WORDS, loops, _WRITTEN_SHARED_NBYTES, going_on, most=4, at_once=4)


def _of_read_pages() -> tuple[float | Some, ...]:
    """The loops of a frame of one block that is read; much of that is for a warp or two."""
    once, runs = Some(1 / _WARPS, 1), _WORDS // _RUN
    header = (
        Some(3 / _WARPS, 1),
        once,
        once,
        Some(2 / _WARPS, 1),
    )  # copies; the shape; both checksums, four stripes each
    index = once, once, once, Some(2 / _WARPS, 1)  # entries, records, zeros behind them, padding
    checks = 1, _PAGE_NBYTES // 1024 / _WARPS, once, once, 0  # the block; its sums, and those of the last stripes
    escapes = runs / 64, once, Some(1 / _WARPS, runs / 32), 0  # counted, a lane for eight words; zeros; added up
    words = 1, 0, 0, runs / 32, 0  # the block; equal words, and lo above 240; 16 runs in two steps at once, and in one
    patches = 1, _ESCAPED_RUNS / _WARPS, 1 / 2, 1 / 2  # runs, those of them that have escapes, and these in two halves
    return *header, *index, *checks, *escapes, Some(1 / _WARPS, runs * 3 / 8 / 8), *words, *patches, 0


def _of_fast_blocks() -> tuple[float | Some, ...]:
    """The loops of a block of profile `fast` that is encoded into a frame, its checksum included."""
    one = 1 / _WARPS  # by one warp
    steps = [_warp_trips(numbers, 4) for numbers in FAST_LATER[:2]]
    ends = [Some(one, 1), Some(one, 1), Some(one, 2)]  # of runs that are short: 2 bits; those of 3 bits
    pieces = _FAST_NBYTES // 1024
    return (
        _WORDS / 4096, 0, _WORDS / _RUN / 64, 0,  # the list; equal words; runs by 64, and what is left
        steps[0], ends[0], steps[1], *ends,  # tiers 2 and 3
        Some(one, 1), Some(2 * one, 1), 0, 0,  # bytes; the descriptor; stored and equal words
        pieces / _WARPS, Some(one, 1), Some(one, 4), Some(one, 0),  # sums of pieces, of the last one
        one, 1, 0, *(Some(one, trips) for trips in divmod(pieces, 8)),  # the place, by another warp; their chain
        0, 0, _FAST_NBYTES // 16384, _FAST_NBYTES % 16384 / 4096,  # copies of stored words, and of what is coded
        *[0] * 7,  # leaves
    )  # fmt: skip


def _uncounted(what: str, header: str, expression: str, threads: int = 256, stack_nbytes: int = 0) -> Counted:
    return Counted(what, Kernel(header, expression), threads, stack_nbytes=stack_nbytes)


def _product(eights: int, inputs: str, most: float, at_once: int) -> Counted:
    """A product with 8 * `eights` inputs and 4096 columns: a block of threads takes two tiles of 16 rows, and each warp
    two runs of these. One quarter of a run in seven has an escape."""
    # Tiles, parts, runs, quarters, escapes; numbers of the result; their parts: rounded, 16 and four at once; the last
    # ones, rounded.
    loops = (2, 1, 2, 4, 1 / 7, eights / 2, 0, 0, 1, 0)
    shared_nbytes = _WARPS * (_SLOTS_NBYTES + 512 * eights)
    kernel = Kernel("thin.cuh", f"thin<{eights}, false>")
    return Counted(
        f"product `resident`, {inputs} inputs", kernel, 256, 2 * 16 * 4096, loops, shared_nbytes, most=most,
        at_once=at_once,
    )  # fmt: skip


def _of_cascades(what: str, layout: str, width: int, eights: int, most: float, at_once: int, **more: int) -> Counted:
    """A product with 8 * `eights` inputs and 4096 columns, of blocks whose tier 1 has 2 bits, as `fast` makes them, or
    3 and no later tier, as `resident` makes them of F16. A block of threads takes a tile of 16 rows, in two blocks."""
    later, streams_nbytes, slots_nbytes, scratch_nbytes = 4, _COPIED_NBYTES, 2 * _RESOLVED_NBYTES, _TEAMS_NBYTES
    if width == 3:
        later, streams_nbytes, slots_nbytes, scratch_nbytes = 0, _ESCAPED_NBYTES, 2 * _ESCAPED_NBYTES, 0
    # Groups; blocks of a team, copies, tiers; widths 1, 2, 3; tiles, parts, runs, halves of runs; numbers of the
    # result; their parts: four at once, then those that are rounded, and what is left.
    loops = (1, 1, streams_nbytes / 16 / 128, later, *_resolving_in_turn(), 1, 1, 2, 2, eights / 2, 2, 0, 0, 0)
    kernel = Kernel("thin_cascade.cuh", f"thin_cascade<{layout}, {width}, {eights}, false>")
    shared_nbytes = slots_nbytes + max(scratch_nbytes, _WARPS * (2048 + 512 * eights))
    return Counted(what, kernel, 256, _TILE_WORDS, loops, shared_nbytes, most=most, at_once=at_once, **more)


def _by_wgmma(eights: int, inputs: str, most: float) -> Counted:
    """The same on Hopper: a block of threads takes a tile of 64 rows, and each of four warpgroups four runs of these,
    in two turns."""
    # First copies, tiles, parts, runs, escapes in each quarter; turns; numbers of the result: float32, with bias, BF16.
    loops = (4, 1, 2, 2, *[1 / 7] * 4, 4, 0, 0, eights)
    shared_nbytes = 4 * (_GROUP_NBYTES + 2048 * eights) + eights * 8 * 68 * 4
    return Counted(
        f"product `resident`, {inputs} inputs, by wgmma", Kernel("wgmma.cuh", f"wgmma<{eights}, false>", "a"), 512,
        64 * 4096, loops, shared_nbytes, most=most,
    )  # fmt: skip


def _applied() -> Counted:
    """A block of kind sparse with two classes and 583 changed words, 1.78 %, as the encoder makes it of weights before
    and after a step of 5e-6 (benchmarks/synthetic_pairs.py). Warp 0 reads its string: of what others do not do, each of
    the eight warps counts for an eighth."""
    stored, long_zeros = (0,) * 5, 0  # what few blocks have: that they are stored; more than 31 zeros in a code
    masks = (8, 1, 0, 0, 0)  # 16 words by a thread, a threshold each; the last words, if they are fewer
    # Batches of codes, and rounds of each until lanes agree; codes in each round, and codes once more.
    positions = (1, 2.4, 10.8, long_zeros, 11.1, long_zeros)
    sets = (0.75, 2.6, 2.2, long_zeros, 2.8, long_zeros)
    members = (0.7, 1, 1, 2.2)  # 32 words of a set; of one that is inverted marks, members, and 32 others
    large = (14, long_zeros, 0)
    by_warp_0 = (2 / 8, long_zeros, 9.6, *positions, 2 / 8, 2, long_zeros, *sets, *members, *large, 1 / 8)
    # Two classes are counted; both have the words that the last changed ones need; their words are moved.
    placed = (1, 2, 2, 2, 583 / 2 / 256, 0)
    by_tiles, constant = (0,) * 22, (0, 0, 0, 0)
    dense = (0,) * 11
    loops = (1, *stored, *dense, *masks, *by_warp_0, *by_tiles, *placed, *constant)
    kernel = Kernel("apply.cuh", "take_blocks<u16, true>")
    return Counted("apply `sparse`, 1.8 % changed", kernel, 256, _WORDS, loops, 48 << 10, most=20, at_once=4)


def _applied_dense() -> Counted:
    """A block of kind dense with four classes, of ten symbols each. One of the eight warps takes the symbols. What is
    for words that do not exist, and for sizes that have low bits, counts for each word."""
    stored, others = (0,) * 5, (0,) * 63
    tables = (3, 4 / _WARPS, 10, *[1 / _WARPS] * 3)  # thresholds; tables and their symbols; zeros
    slots = (32 * 4 / _WARPS, 4)  # of 32 symbols in four classes, a warp each
    tiles = _WORDS / 4096, 4096 / 32 / _WARPS  # and groups of symbols in each
    kernel = Kernel("apply.cuh", "take_blocks<u16, true>")
    loops = (1, *stored, *tables, *slots, *tiles, 1 / _WARPS, *others)
    return Counted("apply `dense`", kernel, 256, _WORDS, loops, 48 << 10, most=160, at_once=4)


def _of_steps() -> Counted:
    """The same pair of blocks, encoded with four classes: its string, its checksum, its place in the frame. Half of the
    warps write positions, the others sizes."""
    changed = (16 / 4, 0, 0, 0, *[2.6] * 4, 2.3, 2.3)  # 32 words by a thread; the last ones; places; classes; ranks
    parts = (3, 0.5, 5, 0.5, 1.5, 4, 0.76, 0.28, 0.28)  # zeros; positions, codes; sizes, sets, 32 of each, codes; large
    joined = (1, 1)
    checksum = (0, 1 / _WARPS, 3, 0, 0)  # whole pieces; stripes of the last one; single bytes
    placed = (1, 1, 0, 0, 1)  # blocks before it, until they have told; scrambled pieces; the copy
    return Counted(
        "encode `sparse`, 1.8 % changed", Kernel("write_steps.cuh", "write_steps<Bf16>"), 256, _WORDS,
        (*changed, *parts, *joined, *[0] * 15, *checksum, *placed), STEPS_NBYTES, going_on=(2 / _WARPS,),
        most=20, at_once=4,
    )  # fmt: skip


def _of_dense() -> Counted:
    """A block of which three words in ten changed, encoded with four classes: 8.8 KB, with 6.8 KB of units. One of the
    eight warps encodes the symbols. What is for words that do not exist, and for sizes that have low bits, counts for
    each word."""
    compared, sparse = (16 / 4, 0, 0, 0), (0,) * 17
    symbols = (4, _WORDS / 4096, 0, _WORDS / 32 / _WARPS)  # zeros, 16 words by a thread; frequencies; groups of symbols
    # Classes; units; zeros before and behind them, four at once and one; tables; 16 words by a thread.
    places = (1, 0, 0, 3400 / 256, 0, 1, 0, 2, 1, 0, _WORDS / 4096)
    checksum = (1, 1 / _WARPS, 3, 0, 0)  # whole pieces; stripes of the last one; single bytes
    placed = (1, 8, 0, 0, 9)  # blocks before it, until they have told; scrambled pieces; the copy
    return Counted(
        "encode `dense`, 30 % changed", Kernel("write_steps.cuh", "write_steps<Bf16>"), 256, _WORDS,
        (*compared, *sparse, *symbols, *places, *checksum, *placed), STEPS_NBYTES, going_on=(2 / _WARPS,),
        most=200, at_once=4,
    )  # fmt: skip


KERNELS = (
    Counted(
        "decode `resident`",
        Kernel("words.cuh", "resident_words<Bf16, 2>"),
        256,
        _WORDS,
        # Runs for lo above 240, which normal weights never have; 16 runs in two steps at once, and in one; escapes, one
        # and four at once: a warp of eight has some.
        (0, _WORDS / _RUN / 32, 0, 1, 0),
        going_on=(1 / _WARPS,),
        most=5,
        at_once=4,
    ),
    Counted(
        "decode `fast`: tiers of 2, 1, 1, 2, 3 bits",
        Kernel("words.cuh", "cascade_words<Bf16, 8, 0, 0x832112, true>"),
        256,
        _WORDS,
        (_COPIED_NBYTES / 16 / 256, *_resolving()),  # copies, 16 bytes each; tiers; words
        shared_nbytes=_ROOM_NBYTES,
        most=14,
        at_once=4,
    ),
    Counted(
        "encode pages",
        Kernel("page.cuh", "encode_pages<Bf16, true>"),
        256,
        _WORDS,
        _of_pages(),
        _PAGE_SHARED_NBYTES,
        going_on=(1, 1 / _WARPS),
        most=16,
        at_once=3,
    ),
    _uncounted("encode pages of any size", "page.cuh", "encode_pages<Bf16, false>"),
    _uncounted("encode pages in F16", "page.cuh", "encode_pages<F16, true>"),
    _uncounted("encode pages in F16, of any size", "page.cuh", "encode_pages<F16, false>"),
    _uncounted("encode pages in F8_E4M3", "page.cuh", "encode_pages<F8E4M3, true>"),
    _uncounted("encode pages in F8_E4M3, of any size", "page.cuh", "encode_pages<F8E4M3, false>"),
    _uncounted("encode pages in F8_E5M2", "page.cuh", "encode_pages<F8E5M2, true>"),
    _uncounted("encode pages in F8_E5M2, of any size", "page.cuh", "encode_pages<F8E5M2, false>"),
    _written("write blocks `resident`", hashes=True, most=13),
    _written("write blocks `resident`, without checksums", hashes=False, most=9),
    _hashed_leaf(),
    *(
        _uncounted(f"write blocks `resident`{what}", "write_blocks.cuh", f"write_blocks<Resident<{layout}>>")
        for what, layout in ((" in F16", "F16"), (" in F8_E4M3", "F8E4M3"), (" in F8_E5M2", "F8E5M2"))
    ),
    *(
        _uncounted(f"write what is left of blocks{what}", "write_blocks.cuh", f"write_others<Resident<{layout}>>")
        for what, layout in (("", "Bf16"), (" in F16", "F16"), (" in F8_E4M3", "F8E4M3"), (" in F8_E5M2", "F8E5M2"))
    ),
    _uncounted("finish frames", "finish_frames.cuh", "finish_frames"),
    _of_steps(),
    _of_dense(),
    *(
        Counted(
            f"encode `sparse` in {dtype}",
            Kernel("write_steps.cuh", f"write_steps<{layout}>"),
            256,
            shared_nbytes=STEPS_NBYTES,
        )
        for dtype, layout in (("F16", "F16"), ("F8_E4M3", "F8E4M3"), ("F8_E5M2", "F8E5M2"))
    ),
    _uncounted("choose classes", "thresholds.cuh", "choose_thresholds<Bf16>"),
    Counted(
        "decode pages, with all checks",
        Kernel("unpage.cuh", "unpage<Bf16, true>"),
        256,
        _WORDS,
        _of_read_pages(),
        most=14,
        at_once=4,
    ),
    *(
        _uncounted(f"decode pages{what}{size}", "unpage.cuh", f"unpage<{layout}, {whole}>")
        for what, layout in (("", "Bf16"), (" in F16", "F16"), (" in F8_E4M3", "F8E4M3"), (" in F8_E5M2", "F8E5M2"))
        for size, whole in ((", whole", "true"), (", of any size", "false"))
        if (layout, whole) != ("Bf16", "true")
    ),
    Counted(
        "encode a block of `fast`: tiers of 2, 2, 3 bits",
        Kernel("write_fast.cuh", "write_blocks<Fast<Bf16>>"),
        256,
        _WORDS,
        _of_fast_blocks(),
        _FAST_SHARED_NBYTES,
        going_on=(1, 1, 1, 1 / _WARPS),
        most=20,
        at_once=2,
    ),
    *(
        _uncounted(f"encode {what} of `fast` in {name}", "write_fast.cuh", f"{kernel}<Fast<{layout}>>")
        for name, layout in (("F16", "F16"), ("F8_E4M3", "F8E4M3"), ("F8_E5M2", "F8E5M2"))
        for what, kernel in (("blocks", "write_blocks"), ("what is left", "write_others"))
    ),
    _of_cascades("product `fast`, 1 to 8 inputs", "Bf16", 2, 1, 14, 2),
    _of_cascades("product `fast`, 9 to 16 inputs", "Bf16", 2, 2, 15, 2),
    _of_cascades("product `fast`, 17 to 32 inputs", "Bf16", 2, 4, 17, 2, stack_nbytes=32),
    _of_cascades("product `fast`, 33 to 64 inputs", "Bf16", 2, 8, 19, 1),
    _of_cascades("product `fast` in F16, 1 to 8 inputs", "F16", 2, 1, 15.5, 2),
    _of_cascades("product `fast` in F16, 9 to 16 inputs", "F16", 2, 2, 16.5, 2, stack_nbytes=24),
    _of_cascades("product `fast` in F16, 17 to 32 inputs", "F16", 2, 4, 17.5, 1),
    _of_cascades("product `fast` in F16, 33 to 64 inputs", "F16", 2, 8, 20, 1),
    _of_cascades("product `resident` in F16, 1 to 8 inputs", "F16", 3, 1, 15, 1),
    _of_cascades("product `resident` in F16, 9 to 16 inputs", "F16", 3, 2, 15.5, 1),
    _of_cascades("product `resident` in F16, 17 to 32 inputs", "F16", 3, 4, 17, 1),
    _of_cascades("product `resident` in F16, 33 to 64 inputs", "F16", 3, 8, 20, 1),
    _applied(),
    _applied_dense(),
    _uncounted("apply `sparse`, words of 8 bits", "apply.cuh", "take_blocks<u8, true>"),
    _uncounted("apply, words of 32 bits and more", "apply.cuh", "take_blocks<u32, true>"),
    _uncounted("check blocks before apply", "apply.cuh", "take_blocks<u16, false>"),
    _uncounted("compare tensors before apply", "apply.cuh", "compare_tensors<false>"),
    _uncounted("compare tensors behind apply", "apply.cuh", "compare_tensors<true>"),
    _uncounted("open relative frames", "open_relative.cuh", "open_frames"),
    _uncounted("decode `fast`, short runs", "words.cuh", "cascade_words<Bf16, 8, 0, 0x832112, false>"),
    _uncounted("decode `fast`, F32", "words.cuh", "cascade_words<F32, 24, 0, 0x832112, true>"),
    _uncounted("decode `fast`, F8_E4M3", "words.cuh", "cascade_words<F8E4M3, 4, 0, 0x832112, true>"),
    _uncounted("decode `enec`", "enec.cuh", "enec_words<Bf16, 8, 0, 0, 3, 6, true>"),
    _uncounted("count escapes", "open.cuh", "count_escapes", 128),
    _uncounted("count bits of masks", "open.cuh", "count_mask", 128),
    _uncounted("list escapes", "open.cuh", "list_escapes", 128),
    _uncounted("rows of 16-bit words", "rows.cuh", "take_rows<u16>", stack_nbytes=104),
    _uncounted("copy blocks", "copy.cuh", "copy_blocks<2>"),
    _product(1, "1 to 8", 7, 2),
    _product(2, "9 to 16", 7.5, 2),
    _product(4, "17 to 32", 9, 1),
    _product(8, "33 to 64", 12, 1),
    _uncounted("product `resident`, 1 to 8 inputs, two accumulators", "thin.cuh", "thin<1, true>"),
    _by_wgmma(4, "17 to 32", 8),
    _by_wgmma(6, "33 to 48", 9),
    _by_wgmma(8, "49 to 64", 10),
)


_TEXT = (
    "Instructions a word for sm_90, for a block of 32,768 normal weights: in loops (slope), and with what is "
    "done once (all). For each architecture the registers of a thread, and how many blocks of threads a processor has "
    "room for. Shared memory is in bytes a block. Only three kernels keep anything of a thread in local memory: the "
    "one for rows, and those for `fast` with 17 to 32 inputs and, in F16, with 9 to 16."
)


def measured(tools: Tools) -> tuple[list[list[str]], list[str]]:
    """Rows of the table, and what is over its limit."""
    rows, broken = [], []
    for each in KERNELS:
        architectures = (_COUNTED,) if each.kernel.suffix else ARCHITECTURES
        codes = {architecture: tools.compiled(each.kernel, architecture) for architecture in architectures}
        counted = _instructions(each, tools.listing(codes[_COUNTED]), broken) if each.words else ["-", "-"]
        cells = [each.what, *counted]
        for architecture in ARCHITECTURES:
            code = codes.get(architecture)
            if code is None:
                cells.append("-")
                continue
            at_once = code.at_once(each.threads, each.shared_nbytes, architecture)
            cells.append(f"{code.registers}, {at_once}")
            if code.stack_nbytes > each.stack_nbytes:
                broken.append(f"{each.what}: {code.stack_nbytes} bytes of a thread are in local memory")
            if architecture == _COUNTED and at_once < each.at_once:
                broken.append(f"{each.what}: expected room for {each.at_once} blocks, got {at_once}")
        rows.append([*cells, f"{max(code.shared_nbytes for code in codes.values()) + each.shared_nbytes:,}"])
    return rows, broken


def _instructions(each: Counted, listing: Listing, broken: list[str]) -> list[str]:
    try:
        inside, outside = listing.executed(each.loops, each.going_on)
    except ValueError as error:
        broken.append(f"{each.what}: {error}")
        return ["?", "?"]
    slope, everything = (count * each.threads / each.words for count in (inside, inside + outside))
    if each.most is not None and everything > each.most:
        broken.append(f"{each.what}: expected at most {each.most} instructions a word, got {everything:.2f}")
    return [f"{slope:.1f}", f"{everything:.1f}"]


def render(rows: list[list[str]], version: tuple[int, int]) -> str:
    heads = ["kernel", "slope", "all", *(f"sm_{each}" for each in ARCHITECTURES), "shared memory"]
    return "\n\n".join(
        [
            "# Machine code of the kernels on a GPU",
            f"[The page](../../docs/devices.md) says what they do. `make device-test` wrote this, by NVRTC "
            f"{version[0]}.{version[1]}; no GPU was there.",
            filled(_TEXT),
            pages.table(heads, rows),
        ]
    ) + "\n"  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device.counts", description=__doc__)
    parser.add_argument("environment", type=Path, help="that has NVIDIA's packages nvrtc, cuobjdump and nvdisasm")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(environment.ROOT)}")
    options = parser.parse_args()
    tools = Tools(options.environment)
    rows, broken = measured(tools)
    page = render(rows, tools.compiler.version)
    print(page, end="")
    if options.write:
        PAGE.write_text(page)
    elif page != PAGE.read_text():
        broken.append(f"{PAGE.name} has other figures: --write writes these, once they are wanted")
    if broken:
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
