"""The host's reading of a frame that lies on a device: header, index, and the descriptors of blocks.

A block is decoded by kernels if it is stored, constant, or enec or cascade with sign_mantissa verbatim or trimmed alike
in the whole block; the last two in layouts that the kernels know, those of BF16, F16, F32, F8_E4M3 and F8_E5M2. The
dtype's name has no say. The host decodes any other block, once; and blocks whose later runs (blocks.py) no 32-bit
number counts the words of, in frames of tens of gigabytes. Kernels that work by group (fields.py) also leave short
blocks to it, and those at the end of a frame that has no padding.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch

from ...codec import FrameReader, Layout, check_frame_size, check_padding
from ...errors import CorruptDataError, UnsupportedTensorError

_KNOWN_FLOATS = {(2, 8), (2, 5), (4, 8), (1, 4), (1, 5)}  # word_nbytes and exponent_bits
_DESCRIPTOR_NBYTES = 32  # blocks are multiples of this, and no descriptor that is read here is longer
_STORED = 1 << 31
_CONSTANT, _ENEC, _CASCADE, _EXTENDED = 1, 2, 3, 7
_EXTENDED_CASCADE = 1
_TIER_WIDTHS = (
    (2, 2, 3), (2, 2, 2, 3), (2, 1, 2, 2, 2), (2, 1, 1, 2, 3), (1, 2, 3), (1, 1, 1, 3), (3, 3), (1,)
)  # fmt: skip
_EXTENDED_TIER_WIDTHS = ((4,), (3,), (4, 3, 3, 3), (3, 2, 2, 2), (1, 1, 1, 2, 2), (2, 1, 1, 1, 2))
_MOST_TIERS = 5
_PER_RUN = 255
RUN = 256
_MOST_LATER_RUNS = (1 << 31) // 64  # each has 64 words of memory


class StoredLaunch(NamedTuple):
    """Blocks that are copied: stored ones, or, if `by_host`, such as the host has decoded."""

    by_host: bool


class ConstantLaunch(NamedTuple):
    """Blocks of one word each."""


class CascadeLaunch(NamedTuple):
    """Cascades that share a compiled kernel. `whole` says that all runs are full."""

    rest_bits: int
    trail: int
    widths: tuple[int, ...]
    whole: bool

    @property
    def packed_widths(self) -> int:
        """Four bits for each tier, the bytes behind the last one."""
        return sum(w << 4 * i for i, w in enumerate((*self.widths, 8)))


class EnecLaunch(NamedTuple):
    """Blocks of enec that share a compiled kernel; 4 << `quads_log2` words share a mask bit."""

    rest_bits: int
    trail: int
    quads_log2: int
    m: int
    nb: int
    whole: bool


Launch = StoredLaunch | ConstantLaunch | CascadeLaunch | EnecLaunch


class Plan(NamedTuple):
    """A frame, ready to be prepared on its device.

    Attributes:
        reader: of the header.
        rows: by launch, the launch data of its blocks (blocks.py), by ordinal.
        later_runs: how many runs later tiers and high parts have, in all blocks.
        host_blocks: ordinals of the blocks that the host decodes, in the order of their words.
    """

    reader: FrameReader
    rows: dict[Launch, list[list[int]]]
    later_runs: int
    host_blocks: list[int]


class _Block(NamedTuple):
    """A block. `position` and `nbytes` are those of its bytes in the frame, `tail` is the last 32 of them; `alignment`
    is that of all blocks."""

    ordinal: int
    num_words: int
    position: int
    nbytes: int
    stored: bool
    alignment: int
    tail: bytes

    @property
    def row(self) -> list[int]:
        """The launch data that every block has."""
        return [self.position // 32, self.ordinal, self.num_words]

    def corrupt(self, message: str) -> CorruptDataError:
        return CorruptDataError(message, block=self.ordinal, byte=self.position)

    def check_size(self, streams_nbytes: int, params_nbytes: int) -> None:
        """Streams, parameters and the tag must fill the block."""
        needed = -(-(streams_nbytes + params_nbytes + 1) // self.alignment) * self.alignment
        if needed != self.nbytes:
            raise self.corrupt(f"expected a block of {needed} bytes by its descriptor, got {self.nbytes}")


def plan(frame: torch.Tensor, full_runs: int = 0, overread: int = 0) -> Plan:
    """Read what is needed of a frame.

    Args:
        frame: its bytes.
        full_runs: if not 0, kernels decode coded blocks only if these are that many full runs, or more.
        overread: how many bytes kernels may read behind a coded block.

    Raises:
        CorruptDataError, TruncatedDataError, UnsupportedVersionError, LimitExceededError: it is not valid.
        UnsupportedTensorError: it is relative to a base.
    """
    reader, index = _open(frame)
    if reader.info.base_hash is not None:
        raise UnsupportedTensorError(
            "expected a plain frame, got one that is relative to a base",
            advice="decode it on the CPU: tensorwire.decompress(frame, base=...)",
        )
    rows: dict[Launch, list[list[int]]] = {}
    later_runs = 0
    host_blocks: list[int] = []
    for block in _blocks(frame, reader, index):
        planned = _plan_block(block, reader.info.layout)
        if planned is not None and isinstance(planned[0], CascadeLaunch | EnecLaunch):
            short = full_runs and (block.num_words % RUN or block.num_words < full_runs * RUN)
            if short or block.position + block.nbytes + overread > len(frame):
                planned = None
        own_runs = 0 if planned is None else _later_runs(*planned)
        if later_runs + own_runs > _MOST_LATER_RUNS:
            planned, own_runs = None, 0
        if planned is None:
            units = len(host_blocks) * -(-reader.block_nbytes // 32)
            host_blocks.append(block.ordinal)
            planned = StoredLaunch(True), [units, block.ordinal, block.num_words]
        launch, row = planned
        row += [0] * (7 - len(row))
        row.append(later_runs)
        later_runs += own_runs
        rows.setdefault(launch, []).append(row)
    return Plan(reader, rows, later_runs, host_blocks)


def _later_runs(launch: Launch, row: list[int]) -> int:
    if isinstance(launch, EnecLaunch):
        return -(-row[4] // RUN)
    if isinstance(launch, CascadeLaunch):
        return sum(-(-count // RUN) for count in counts_of(row)[: len(launch.widths) - 1])
    return 0


def counts_of(row: list[int]) -> list[int]:
    """n2 to n6 of a block of cascade."""
    return [row[4 + i // 2] >> 16 * (i % 2) & 0xFFFF for i in range(_MOST_TIERS)]


def host_bytes(part: torch.Tensor) -> bytes:
    """The bytes of a tensor, wherever it lies."""
    data: bytes = part.cpu().numpy().tobytes()
    return data


def _open(frame: torch.Tensor) -> tuple[FrameReader, bytes]:
    """Check header, size and padding; also return the index."""
    header_nbytes = FrameReader.header_size(host_bytes(frame[: FrameReader.MIN_HEADER_NBYTES]))
    header = host_bytes(frame[:header_nbytes])
    reader = FrameReader(header)
    info = reader.info
    check_frame_size(info, len(frame))
    check_padding(info, host_bytes(frame[info.header_nbytes + info.data_nbytes :]))
    start = FrameReader.MIN_HEADER_NBYTES + 8 * len(info.shape)
    return reader, header[start : start + 8 * info.num_blocks]


def _blocks(frame: torch.Tensor, reader: FrameReader, index: bytes) -> list[_Block]:
    info = reader.info
    places = [place for place, _ in struct.iter_unpack("<II", index)]
    starts = [info.header_nbytes + place % _STORED * info.block_alignment for place in places]
    stops = [*starts[1:], info.header_nbytes + info.data_nbytes]
    steps = torch.arange(-_DESCRIPTOR_NBYTES, 0, device=frame.device)
    ends = torch.tensor(stops[: len(starts)], dtype=torch.int64, device=frame.device)
    tails = host_bytes(frame[ends[:, None] + steps[None, :]])
    num_words = info.uncompressed_nbytes // info.layout.word_nbytes
    return [
        _Block(
            k,
            min(info.block_words, num_words - k * info.block_words),
            start,
            stop - start,
            place >= _STORED,
            info.block_alignment,
            tails[k * _DESCRIPTOR_NBYTES : (k + 1) * _DESCRIPTOR_NBYTES],
        )
        for k, (place, start, stop) in enumerate(zip(places, starts, stops, strict=False))
    ]


def _plan_block(block: _Block, layout: Layout) -> tuple[Launch, list[int]] | None:
    """The launch that decodes a block, and its launch data as far as they are not 0; None if the host decodes it."""
    if block.stored:
        return StoredLaunch(False), block.row
    word_nbytes = layout.word_nbytes
    kind, rest, variant = block.tail[-1] & 7, block.tail[-1] >> 3 & 3, block.tail[-1] >> 5
    if kind == _CONSTANT and word_nbytes <= 4:
        block.check_size(0, word_nbytes)
        word = block.tail[-1 - word_nbytes : -1]
        return ConstantLaunch(), [*block.row, int.from_bytes(word * (4 // word_nbytes), "little")]
    known = layout.split == "float" and (word_nbytes, layout.exponent_bits) in _KNOWN_FLOATS
    cascade = kind == _CASCADE or (kind == _EXTENDED and block.tail[-2] == _EXTENDED_CASCADE)
    if not known or not (cascade or kind == _ENEC):
        return None
    end = 2 if kind == _EXTENDED else 1  # bytes of the tag
    params_nbytes = 4 if kind == _ENEC else 13
    planned = _plan_rest(block, rest, end + params_nbytes, layout)
    if planned is None:
        return None
    params = block.tail[-end - params_nbytes : -end]
    if kind == _ENEC:
        return _plan_enec(block, params, variant, layout, planned)
    shapes = _EXTENDED_TIER_WIDTHS if kind == _EXTENDED else _TIER_WIDTHS
    if variant >= len(shapes):
        raise block.corrupt(f"expected a variant of cascade below {len(shapes)}, got {variant}")
    return _plan_cascade(block, params, shapes[variant], layout, planned)


class _Rest(NamedTuple):
    """How sign_mantissa is stored: in how many bits, with how many zeros below them; and the size of all parameters of
    the block, the tag's last byte not among them."""

    bits: int
    trail: int
    params_nbytes: int


def _plan_rest(block: _Block, rest: int, end: int, layout: Layout) -> _Rest | None:
    """How the rest is stored whose parameters stand `end` bytes before the block's end; None if the host decodes it."""
    bits = layout.rest_bits
    if rest == 0:
        return _Rest(bits, 0, end - 1)
    lead, trail = block.tail[-2 - end : -end]
    if rest > 1 or trail == _PER_RUN:
        return None
    if lead + trail > bits:
        raise block.corrupt(f"expected sign_mantissa of {bits} bits, got {lead} and {trail} to trim")
    return _Rest(bits - lead - trail, trail, end + 1)


def _plan_enec(block: _Block, params: bytes, variant: int, layout: Layout, rest: _Rest) -> tuple[Launch, list[int]]:
    b, m, nb, num_high = params[0], params[1] >> 4, params[1] & 15, int.from_bytes(params[2:], "little")
    if not (2 <= variant <= 5 and 1 <= m < nb <= layout.exponent_bits):
        raise block.corrupt(
            f"expected parameters of enec for {layout.exponent_bits} bits, got m {m}, nb {nb}, variant {variant}"
        )
    n = block.num_words
    sizes = field_nbytes(n, rest.bits), field_nbytes(n, m), field_nbytes((n + (1 << variant) - 1) >> variant, 1)
    block.check_size(sum(sizes) + field_nbytes(num_high, nb - m), rest.params_nbytes)
    return EnecLaunch(rest.bits, rest.trail, variant - 2, m, nb, n % RUN == 0), [*block.row, b, num_high]


def _plan_cascade(
    block: _Block, params: bytes, widths: tuple[int, ...], layout: Layout, rest: _Rest
) -> tuple[Launch, list[int]]:
    lo, packed, *counts = struct.unpack(f"<BH{_MOST_TIERS}H", params)
    below = [packed >> 4 * k & 15 for k in range(_MOST_TIERS - 1)]
    begin, end = lo, lo  # the tiers so far name [begin, end)
    for w, a in zip(widths, (0, *below), strict=False):
        c = (1 << w) - 1
        if a > c:
            raise block.corrupt(f"expected a tier with at most {c} exponents below the others, got {a}")
        begin, end = begin - a, end + c - a
    if begin < 0 or end > 1 << layout.exponent_bits:
        raise block.corrupt(
            f"expected tiers that name exponents of {layout.exponent_bits} bits, got {begin} to {end - 1}"
        )
    if any(below[len(widths) - 1 :]) or any(counts[len(widths) :]):
        raise block.corrupt(f"expected zeros where a cascade of {widths} has no parameters")
    numbers = zip((block.num_words, *counts), (*widths, 8), strict=False)
    sizes = [field_nbytes(block.num_words, rest.bits), *(field_nbytes(count, w) for count, w in numbers)]
    block.check_size(sum(sizes), rest.params_nbytes)
    launch = CascadeLaunch(rest.bits, rest.trail, widths, block.num_words % RUN == 0)
    pairs = [counts[0] | counts[1] << 16, counts[2] | counts[3] << 16, counts[4]]
    return launch, [*block.row, lo | packed << 8, *pairs]


def leading(w: int) -> int:
    """Bits of the leading plane of a field of `w` bits, 1 to 8."""
    return 4 if w >= 4 else 2 if w >= 2 else 1


def field_nbytes(count: int, w: int) -> int:
    """Bytes of a field of `count` numbers of `w` bits."""
    return sum((count * p + 31) // 32 * 4 for p in (16, 8, 4, 2, 1) if w & p)
