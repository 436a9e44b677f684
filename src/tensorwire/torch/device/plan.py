"""The host's reading of a frame that lies on a device: header, index, and the descriptors of blocks.

A block is decoded by kernels if it is stored, constant, or enec or cascade with sign_mantissa verbatim or trimmed alike
in the whole block; the last two in layouts that the kernels know, those of BF16, F16, F32, F8_E4M3 and F8_E5M2. The
dtype's name has no say. The host decodes any other block, once; and blocks of which a number of launch data takes more
than 32 bits, in frames of tens of gigabytes. Kernels that work by group (triton/fields.py) also leave short
blocks to it, and those at the end of a frame that has no padding.

A gigabyte has some 15,000 blocks. So all is done by arrays: blocks are grouped by their tag, and what is checked and
computed for one is so for all of its group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ...codec import FrameReader, Layout, check_frame_size, check_padding
from ...errors import CorruptDataError, UnsupportedTensorError

Array: TypeAlias = npt.NDArray[Any]
_Number = TypeVar("_Number", int, Array)

_KNOWN_FLOATS = {(2, 8), (2, 5), (4, 8), (1, 4), (1, 5)}  # word_nbytes and exponent_bits
_DESCRIPTOR_NBYTES = 32  # blocks are multiples of this, and no descriptor that is read here is longer
_FIRST_NBYTES = 1 << 14  # of a frame, which hold the header of most
_STORED = 1 << 31
_CONSTANT, _ENEC, _CASCADE, _EXTENDED = 1, 2, 3, 7
_EXTENDED_CASCADE = 1
_TIER_WIDTHS = (
    (2, 2, 3), (2, 2, 2, 3), (2, 1, 2, 2, 2), (2, 1, 1, 2, 3), (1, 2, 3), (1, 1, 1, 3), (3, 3), (1,)
)  # fmt: skip
_EXTENDED_TIER_WIDTHS = ((4,), (3,), (4, 3, 3, 3), (3, 2, 2, 2), (1, 1, 1, 2, 2), (2, 1, 1, 1, 2))
LISTED = (4,)
"""The tier shape whose escapes are few, and stand in a list."""
_MOST_TIERS = 5
_CASCADE_NBYTES, _ENEC_NBYTES = 13, 4  # of their parameters
_PER_RUN = 255
RUN = 256
ROW = 8
"""Numbers of launch data that a block has."""
_ROOM_BEHIND = 288  # bytes
_MOST_LATER_RUNS = (1 << 31) // 64  # each has 64 words of memory
_MOST_LISTED = _MOST_UNITS = (1 << 32) - 1


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
        rows: by launch, the launch data of its blocks, by ordinal: ROW numbers of 32 bits each (Row of frame.cuh).
        later_runs: how many runs later tiers and high parts have, in all blocks.
        listed: how many words escape from tier shape (4), in all blocks.
        host_blocks: ordinals of the blocks that the host decodes, in the order of their words.
    """

    reader: FrameReader
    rows: dict[Launch, Array]
    later_runs: int
    listed: int
    host_blocks: list[int]


class _Blocks(NamedTuple):
    """Blocks, by ordinal: `positions` and `nbytes` are those of their bytes in the frame, `tails` the last 32 of these.
    `alignment` is that of all blocks; `errors` has what is wrong with any, and its block."""

    ordinals: Array
    num_words: Array
    positions: Array
    nbytes: Array
    tails: Array
    alignment: int
    errors: list[tuple[int, CorruptDataError]]

    @property
    def whole(self) -> bool:
        """Whether all their runs are full; asked where that is so of all of them, or of none."""
        return bool(self.num_words[0] & (RUN - 1) == 0)

    def some(self, places: Array) -> _Blocks:
        """The blocks at these places, which are in order."""
        if len(places) == len(self.ordinals):
            return self
        arrays = (self.ordinals, self.num_words, self.positions, self.nbytes, self.tails)
        ordinals, num_words, positions, nbytes, tails = (each[places] for each in arrays)
        return _Blocks(ordinals, num_words, positions, nbytes, tails, self.alignment, self.errors)

    def check(self, right: Array, message: Callable[[int], str]) -> None:
        """Note the first block for which `right` is false; `message` says of a place what is wrong there."""
        if not right.all():
            k = int(right.argmin())
            error = CorruptDataError(message(k), block=int(self.ordinals[k]), byte=int(self.positions[k]))
            self.errors.append((int(self.ordinals[k]), error))

    def refuse(self, message: str) -> None:
        """The same is wrong with all of them."""
        self.check(np.zeros(len(self.ordinals), bool), lambda _: message)

    def check_size(self, streams_nbytes: Array | int, params_nbytes: int) -> None:
        """Streams, parameters and the tag must fill the block."""
        filled = np.broadcast_to(streams_nbytes + (params_nbytes + 1), self.nbytes.shape)
        needed = -(-filled // self.alignment) * self.alignment
        self.check(
            needed == self.nbytes,
            lambda k: f"expected a block of {needed[k]} bytes by its descriptor, got {self.nbytes[k]}",
        )

    def rows(self, parameters: Array | int = 0, *pairs: Array) -> Array:
        """Their launch data, without the first later runs."""
        rows = np.zeros((len(self.ordinals), ROW), np.uint32)
        for column, values in enumerate((self.positions >> 5, self.ordinals, self.num_words, parameters, *pairs)):
            rows[:, column] = values
        return rows


_Planned: TypeAlias = "tuple[Launch, Array, Array | int]"
"""A launch, the launch data of its blocks, and how many later runs these have."""


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
    blocks, stored = _blocks(frame, reader, index)
    num_blocks = len(stored)
    by_kernels = np.zeros(num_blocks, bool)
    later = np.zeros(num_blocks, np.int64)  # runs of each block
    planned: list[tuple[Launch, Array]] = []
    for launch, rows, later_runs in _launches(blocks, stored, reader.info.layout):
        ordinals = rows[:, 1]
        if isinstance(launch, CascadeLaunch | EnecLaunch):
            fit = np.ones(len(rows), bool)
            if full_runs:
                words = blocks.num_words[ordinals]
                fit &= (words % RUN == 0) & (words >= full_runs * RUN)
            if overread:
                fit &= blocks.positions[ordinals] + blocks.nbytes[ordinals] + overread <= len(frame)
            by_kernels[ordinals] = fit
            later[ordinals] = fit * later_runs
        else:
            by_kernels[ordinals] = True
        planned.append((launch, rows))
    if blocks.errors:
        raise min(blocks.errors, key=lambda each: each[0])[1]
    listed = np.zeros(num_blocks, np.int64)  # escapes of each block
    for launch, rows in planned:
        if _is_listed(launch):
            listed[rows[:, 1]] = counts_of(rows)[:, 0]
    by_kernels &= blocks.positions >> 5 <= _MOST_UNITS
    for numbers, most in ((later, _MOST_LATER_RUNS), (listed, _MOST_LISTED)):
        numbers *= by_kernels
        by_kernels &= (numbers == 0) | (numbers.cumsum() <= most)
    later *= by_kernels
    listed *= by_kernels
    by_host = np.flatnonzero(~by_kernels)
    if len(by_host):
        planned = [(launch, rows[by_kernels[rows[:, 1]]]) for launch, rows in planned]
        rows = blocks.some(by_host).rows()
        rows[:, 0] = np.arange(len(by_host)) * -(-reader.block_nbytes // 32)
        planned.append((StoredLaunch(True), rows))
    before, before_listed = later.cumsum() - later, listed.cumsum() - listed
    for launch, rows in planned:
        rows[:, ROW - 1] = (before_listed if _is_listed(launch) else before)[rows[:, 1]]
    return Plan(reader, _by_launch(planned), int(later.sum()), int(listed.sum()), [int(k) for k in by_host])


def _is_listed(launch: Launch) -> bool:
    return isinstance(launch, CascadeLaunch) and launch.widths == LISTED


def _by_launch(planned: list[tuple[Launch, Array]]) -> dict[Launch, Array]:
    """The launch data of each launch, by ordinal. Blocks with other tags may have the same one."""
    parts: dict[Launch, list[Array]] = {}
    for launch, rows in planned:
        if len(rows):
            parts.setdefault(launch, []).append(rows)
    together = {launch: np.concatenate(some) for launch, some in parts.items() if len(some) > 1}
    ordered = {launch: rows[rows[:, 1].argsort()] for launch, rows in together.items()}
    return {launch: ordered.get(launch, some[0]) for launch, some in parts.items()}


def counts_of(rows: Array) -> Array:
    """n2 to n6 of a block of cascade, or of blocks, a row each."""
    return np.ascontiguousarray(rows[..., 4:7], "<u4").view("<u2")[..., :_MOST_TIERS].astype(np.int64)


def host_bytes(part: torch.Tensor) -> bytes:
    """The bytes of a tensor, wherever it lies."""
    data: bytes = part.cpu().numpy().tobytes()
    return data


def _open(frame: torch.Tensor) -> tuple[FrameReader, bytes]:
    """Check header, size and padding; also return the index."""
    header = host_bytes(frame[:_FIRST_NBYTES])
    header_nbytes = FrameReader.header_size(header[: FrameReader.MIN_HEADER_NBYTES])
    if header_nbytes > len(header):
        header = host_bytes(frame[:header_nbytes])
    reader = FrameReader(header)
    info = reader.info
    check_frame_size(info, len(frame))
    padding = frame[info.header_nbytes + info.data_nbytes :]
    if len(padding):
        check_padding(info, host_bytes(padding))
    start = FrameReader.MIN_HEADER_NBYTES + 8 * len(info.shape)
    return reader, header[start : start + 8 * info.num_blocks]


def _blocks(frame: torch.Tensor, reader: FrameReader, index: bytes) -> tuple[_Blocks, Array]:
    """All blocks, and which of them are stored."""
    info = reader.info
    places = np.frombuffer(index, "<u4")[::2]
    starts = (places & (_STORED - 1)).astype(np.int64) * info.block_alignment + info.header_nbytes
    stops = np.append(starts[1:], info.header_nbytes + info.data_nbytes)[: len(starts)]
    units = torch.from_numpy(stops // _DESCRIPTOR_NBYTES - 1).to(frame.device)
    tails = frame[: len(frame) // _DESCRIPTOR_NBYTES * _DESCRIPTOR_NBYTES].view(-1, _DESCRIPTOR_NBYTES)
    ordinals = np.arange(len(starts))
    num_words = info.uncompressed_nbytes // info.layout.word_nbytes
    return _Blocks(
        ordinals,
        np.minimum(info.block_words, num_words - ordinals * info.block_words),
        starts,
        stops - starts,
        tails.index_select(0, units).cpu().numpy(),
        info.block_alignment,
        [],
    ), places >= _STORED


def _groups(keys: Array) -> Iterator[Array]:
    """The places of each key, in order. Keys have 16 bits or less, which are sorted quickly."""
    if len(keys) and (keys == keys[0]).all():
        yield np.arange(len(keys))
    elif len(keys):
        order = keys.argsort(kind="stable")
        ordered = keys[order]
        yield from np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def _launches(blocks: _Blocks, stored: Array, layout: Layout) -> Iterator[_Planned]:
    """The launches that decode blocks, but for those that the host decodes. Errors are noted."""
    last, second = blocks.tails[:, -1].astype(np.uint16), blocks.tails[:, -2]
    extended = (last & 7 == _EXTENDED) & (second == _EXTENDED_CASCADE)
    keys = last | extended * np.uint16(1 << 8) | (blocks.num_words & (RUN - 1) == 0) * np.uint16(1 << 9)
    for places in _groups(np.where(stored, np.uint16(1 << 10), keys)):
        some = blocks.some(places)
        if stored[places[0]]:
            yield StoredLaunch(False), some.rows(), 0
        else:
            yield from _coded(some, int(some.tails[0, -1]), layout)


def _coded(blocks: _Blocks, tag: int, layout: Layout) -> Iterator[_Planned]:
    """The launches of blocks that share their tag, and are whole or not."""
    word_nbytes = layout.word_nbytes
    kind, rest, variant = tag & 7, tag >> 3 & 3, tag >> 5
    if kind == _CONSTANT:
        blocks.check_size(0, word_nbytes)
        words = np.tile(blocks.tails[:, -1 - word_nbytes : -1], 8 // word_nbytes)
        yield ConstantLaunch(), blocks.rows(*words.view("<u4").T), 0
        return
    known = layout.split == "float" and (word_nbytes, layout.exponent_bits) in _KNOWN_FLOATS
    cascade = kind == _CASCADE or (kind == _EXTENDED and blocks.tails[0, -2] == _EXTENDED_CASCADE)
    if not known or not (cascade or kind == _ENEC):
        return
    tag_nbytes = 2 if kind == _EXTENDED else 1
    begin = _DESCRIPTOR_NBYTES - tag_nbytes - (_ENEC_NBYTES if kind == _ENEC else _CASCADE_NBYTES)
    for some, trimmed in _rests(blocks, rest, begin, layout):
        params = some.tails[:, begin : _DESCRIPTOR_NBYTES - tag_nbytes]
        if kind == _ENEC:
            yield from _enec(some, params, variant, layout, trimmed)
            continue
        shapes = _EXTENDED_TIER_WIDTHS if kind == _EXTENDED else _TIER_WIDTHS
        if variant >= len(shapes):
            message = f"expected a variant of cascade below {len(shapes)}, got {variant}"
            some.refuse(message)
            continue
        yield _cascade(some, params, shapes[variant], layout, trimmed)


class _Rest(NamedTuple):
    """How sign_mantissa is stored: in how many bits, with how many zeros below them; and the size of all parameters of
    the block, the tag's last byte not among them."""

    bits: int
    trail: int
    params_nbytes: int


def _rests(blocks: _Blocks, rest: int, begin: int, layout: Layout) -> Iterator[tuple[_Blocks, _Rest]]:
    """How the rest is stored whose parameters end at byte `begin` of the tails, and the blocks that store it so, but
    for those that the host decodes."""
    bits, params_nbytes = layout.rest_bits, _DESCRIPTOR_NBYTES - 1 - begin
    if rest == 0:
        yield blocks, _Rest(bits, 0, params_nbytes)
    if rest != 1:
        return
    pairs = blocks.tails[:, begin - 2 : begin].astype(np.uint16)
    for places in _groups(pairs[:, 0] << 8 | pairs[:, 1]):
        lead, trail = (int(each) for each in pairs[places[0]])
        some = blocks.some(places)
        if trail == _PER_RUN:
            continue
        if lead + trail > bits:
            message = f"expected sign_mantissa of {bits} bits, got {lead} and {trail} to trim"
            some.refuse(message)
            continue
        yield some, _Rest(bits - lead - trail, trail, params_nbytes + 2)


def _enec(blocks: _Blocks, params: Array, variant: int, layout: Layout, rest: _Rest) -> Iterator[_Planned]:
    for places in _groups(params[:, 1]):
        some, m, nb = blocks.some(places), int(params[places[0], 1]) >> 4, int(params[places[0], 1]) & 15
        if not (2 <= variant <= 5 and 1 <= m < nb <= layout.exponent_bits):
            message = (
                f"expected parameters of enec for {layout.exponent_bits} bits, got m {m}, nb {nb}, variant {variant}"
            )
            some.refuse(message)
            continue
        n = some.num_words
        b, *high = (params[places, k].astype(np.int64) for k in (0, 2, 3))
        num_high = high[0] | high[1] << 8
        sizes = field_nbytes(n, rest.bits) + field_nbytes(n, m) + field_nbytes((n + (1 << variant) - 1) >> variant, 1)
        some.check_size(sizes + field_nbytes(num_high, nb - m), rest.params_nbytes)
        launch = EnecLaunch(rest.bits, rest.trail, variant - 2, m, nb, some.whole)
        yield launch, some.rows(b, num_high), num_high + (RUN - 1) >> 8


def _cascade(blocks: _Blocks, params: Array, widths: tuple[int, ...], layout: Layout, rest: _Rest) -> _Planned:
    lo = params[:, 0].astype(np.int64)
    packed, *counts = params[:, 1:].copy().view("<u2").T.astype(np.int64)
    numbers = np.stack([blocks.num_words, *counts])  # of tier 1, of the others, and of the bytes behind the last one
    most, shifts, which, planes = _shape(widths, rest.bits)
    below = packed >> shifts & 15
    if (below > most).any():
        k = int((below <= most).all(0).argmin())
        tier = int((below[:, k] <= most[:, 0]).argmin())
        blocks.check(
            (below <= most).all(0),
            lambda _: f"expected a tier with at most {most[tier, 0]} exponents below the others, got {below[tier, k]}",
        )
    begin = lo - below.sum(0)  # all tiers together name [begin, end)
    end = begin + sum((1 << w) - 1 for w in widths)
    blocks.check(
        (begin >= 0) & (end <= 1 << layout.exponent_bits),
        lambda k: f"expected tiers that name exponents of {layout.exponent_bits} bits, got {begin[k]} to {end[k] - 1}",
    )
    unused = packed >> 4 * (len(widths) - 1) | numbers[len(widths) + 1 :].sum(0)
    blocks.check(unused == 0, lambda _: f"expected zeros where a cascade of {widths} has no parameters")
    blocks.check_size(((numbers[which] * planes + 31) >> 5).sum(0) << 2, rest.params_nbytes)
    launch = CascadeLaunch(rest.bits, rest.trail, widths, blocks.whole)
    pairs = (counts[0] | counts[1] << 16, counts[2] | counts[3] << 16, counts[4])
    return launch, blocks.rows(lo | packed << 8, *pairs), ((numbers[1 : len(widths)] + (RUN - 1)) >> 8).sum(0)


@functools.cache
def _shape(widths: tuple[int, ...], rest_bits: int) -> tuple[Array, Array, Array, Array]:
    """The most exponents that each later tier may name below the others, and where `packed` has them; which of a
    block's numbers each of its planes has bits of, and how many."""
    most = np.array([[(1 << w) - 1] for w in widths[1:]], np.int64).reshape(-1, 1)
    shifts = 4 * np.arange(len(widths) - 1)[:, None]
    fields = [(0, rest_bits), *enumerate((*widths, 8))]
    planes = [(which, p) for which, w in fields for p in (16, 8, 4, 2, 1) if w & p]
    which, bits = np.array(planes).T
    return most, shifts, which, bits[:, None]


def leading(w: int) -> int:
    """Bits of the leading plane of a field of `w` bits, 1 to 8."""
    return 4 if w >= 4 else 2 if w >= 2 else 1


def field_nbytes(count: _Number, w: int) -> _Number:
    """Bytes of a field of `count` numbers of `w` bits."""
    nbytes = count & 0
    for p in (16, 8, 4, 2, 1):
        if w & p:
            nbytes = nbytes + (((count * p + 31) >> 5) << 2)
    return nbytes


def room_nbytes(nbytes: _Number) -> _Number:
    """Bytes that streams of so many bytes, or as many resolved exponents, take in shared memory (tiers.cuh)."""
    return (nbytes + 15 & -16) + _ROOM_BEHIND
