"""The host's reading of a frame that lies on a device: header, index, and the descriptors of blocks.

The core describes each block by its last bytes (tw_device_blocks). A block is decoded by kernels if it is stored,
constant, or enec or cascade with sign_mantissa verbatim or trimmed alike in the whole block; the last two in layouts
that the kernels know, those of BF16, F16, F32, F8_E4M3 and F8_E5M2. The dtype's name has no say. The host decodes any
other block, once; and blocks of which a number of launch data takes more than 32 bits, in frames of tens of gigabytes.
Kernels that work by group (triton/fields.py) also leave short blocks to it, and those at the end of a frame that has no
padding.

A gigabyte has some 15,000 blocks. So all is done by arrays.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ...codec import FrameReader, check_frame_size, check_padding
from ...codec.device_blocks import BLOCK_NBYTES, TAIL_NBYTES, block_offsets, device_blocks
from ...errors import TruncatedDataError, UnsupportedTensorError

Array: TypeAlias = npt.NDArray[Any]
_Number = TypeVar("_Number", int, Array)

_KNOWN_FLOATS = {(2, 8), (2, 5), (4, 8), (1, 4), (1, 5)}  # word_nbytes and exponent_bits
_FIRST_NBYTES = 1 << 14  # of a frame, which hold the header of most
_STORED, _HOST, _CONSTANT, _CASCADE, _ENEC = range(5)  # tw_device_kind
LISTED = (4,)
"""The tier shape whose escapes are few, and stand in a list."""
_MOST_TIERS = 5
RUN = 256
ROW = 8
"""Numbers of launch data that a block has."""
_ROOM_BEHIND = 288  # bytes
_MOST_LATER_RUNS = (1 << 31) // 64  # each has 64 words of memory
_MOST_LISTED = _MOST_UNITS = (1 << 32) - 1
_BLOCK = np.dtype(
    {
        "names": ["launch", "kind", "later_runs", "listed"],
        "formats": ["<u8", "u1", "<u4", "<u4"],
        "offsets": [0, 0, 8, 12],
        "itemsize": BLOCK_NBYTES,
    }
)
"""tw_device_block; `launch` is alike in blocks of one launch."""


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


BlockLaunch = StoredLaunch | ConstantLaunch | CascadeLaunch | EnecLaunch
"""What blocks have in common that are decoded by one launch of a kernel."""


class Plan(NamedTuple):
    """How a frame is decoded on its device.

    Attributes:
        reader: of the header.
        table: the launch data of all blocks, one launch behind the other: ROW numbers of 32 bits each (Row of
            frame.cuh).
        rows: by launch, its part of the table, by ordinal.
        later_runs: how many runs later tiers and high parts have, in all blocks.
        listed: how many words escape from tier shape (4), in all blocks.
        host_blocks: ordinals of the blocks that the host decodes, in the order of their words.
    """

    reader: FrameReader
    table: Array
    rows: dict[BlockLaunch, Array]
    later_runs: int
    listed: int
    host_blocks: list[int]


def plan(frame: torch.Tensor, full_runs: int = 0, overread: int = 0) -> Plan:
    """Read what is needed of a frame.

    Args:
        frame: its bytes.
        full_runs: if not 0, kernels decode coded blocks only if these are that many full runs, or more.
        overread: how many bytes kernels may read behind a coded block.

    Raises:
        CorruptDataError, TruncatedDataError, UnsupportedVersionError, LimitExceededError: it is not valid.
        UnsupportedTensorError: it is relative to a base, or has too many blocks that the host decodes.
    """
    reader = _open(frame)
    info = reader.info
    if info.base_hash is not None:
        raise UnsupportedTensorError(
            "expected a plain frame, got one that is relative to a base",
            advice="decode it on the CPU: tensorwire.decompress(frame, base=...)",
        )
    rows, blocks, stops = _blocks(frame, reader)
    by_kernels = blocks["kind"] != _HOST
    known = info.layout.split == "float" and (info.layout.word_nbytes, info.layout.exponent_bits) in _KNOWN_FLOATS
    if not known or full_runs or overread:
        words = rows[:, 2]
        fit = (words % (RUN if full_runs else 1) == 0) & (words >= full_runs * RUN)
        fit &= known & (stops + overread <= frame.numel())
        by_kernels &= fit | (blocks["kind"] <= _CONSTANT)
    for name, most in (("later_runs", _MOST_LATER_RUNS), ("listed", _MOST_LISTED)):
        counts = blocks[name] * by_kernels
        if counts.sum() > most:
            by_kernels &= (counts == 0) | (counts.cumsum(dtype=np.int64) <= most)
    by_host = (~by_kernels).nonzero()[0]
    if len(by_host):
        blocks[by_host] = 0
        blocks["kind"][by_host] = _HOST
        rows[by_host, 3:] = 0
        places = np.arange(len(by_host)) * -(-reader.block_nbytes // 32)
        if places[-1] > _MOST_UNITS:
            raise UnsupportedTensorError(
                f"expected at most 128 GiB of blocks that no kernel decodes, got {len(by_host):,} of them",
                advice="compress with profile 'fast', 'resident' or 'enec'",
            )
        rows[by_host, 0] = places
    table, by_launch = _by_launch(rows, blocks["launch"])
    later, listed = _sums(blocks["later_runs"]), _sums(blocks["listed"])
    for launch, some in by_launch.items():
        some[:, ROW - 1] = (listed if _is_listed(launch) else later)[some[:, 1]]
    return Plan(reader, table, by_launch, int(later[-1]), int(listed[-1]), by_host.tolist())


def _sums(counts: Array) -> Array:
    """The sum of the counts before each one, and that of all."""
    sums = np.zeros(len(counts) + 1, np.int64)
    sums[1:] = counts
    return sums.cumsum()


def _is_listed(launch: BlockLaunch) -> bool:
    return isinstance(launch, CascadeLaunch) and launch.widths == LISTED


def _by_launch(rows: Array, keys: Array) -> tuple[Array, dict[BlockLaunch, Array]]:
    """The launch data of all blocks, one launch behind the other; and those of each launch, which are views."""
    order = keys.argsort()
    keys = keys[order]
    borders = [0, *((keys[1:] != keys[:-1]).nonzero()[0] + 1).tolist(), len(order)]
    places = {_launch_of(int(keys[begin])): slice(begin, end) for begin, end in pairwise(borders) if end}
    for some in places.values():
        order[some].sort()
    table = rows.take(order, 0)
    return table, {launch: table[some] for launch, some in places.items()}


@functools.cache
def _launch_of(key: int) -> BlockLaunch:
    """By kind, rest_bits, trail, whole and coding of tw_device_block."""
    kind, rest_bits, trail, whole = key.to_bytes(8, "little")[:4]
    coding = key >> 32
    if kind == _CASCADE:
        widths = []
        while coding != 8:
            widths.append(coding & 15)
            coding >>= 4
        return CascadeLaunch(rest_bits, trail, tuple(widths), bool(whole))
    if kind == _ENEC:
        return EnecLaunch(rest_bits, trail, coding >> 8, coding & 15, coding >> 4 & 15, bool(whole))
    return ConstantLaunch() if kind == _CONSTANT else StoredLaunch(kind == _HOST)


def counts_of(rows: Array) -> Array:
    """n2 to n6 of a block of cascade, or of blocks, a row each."""
    return np.ascontiguousarray(rows[..., 4:7], "<u4").view("<u2")[..., :_MOST_TIERS].astype(np.int64)


def most_counts_of(rows: Array) -> list[int]:
    """The most that n2 to n6 are in blocks of cascade: quicker than the maxima of `counts_of`."""
    most: list[int] = rows.view("<u2")[:, 8 : 8 + _MOST_TIERS].T.copy().max(1).tolist()
    return most


def host_bytes(part: torch.Tensor) -> bytes:
    """The bytes of a tensor, wherever it lies."""
    data: bytes = part.cpu().numpy().tobytes()
    return data


def _open(frame: torch.Tensor) -> FrameReader:
    """Check header, size and padding."""
    first = host_bytes(frame[:_FIRST_NBYTES])
    try:
        reader = FrameReader(first)
    except TruncatedDataError:
        reader = FrameReader(host_bytes(frame[: FrameReader.header_size(first)]))
    check_frame_size(reader.info, frame.numel())
    if reader.info.padding_nbytes:
        check_padding(reader.info, host_bytes(frame[-reader.info.padding_nbytes :]))
    return reader


def _blocks(frame: torch.Tensor, reader: FrameReader) -> tuple[Array, Array, Array]:
    """All blocks: launch data, _BLOCK, and where each one ends in the frame."""
    num_blocks = reader.info.num_blocks
    offsets = np.empty(num_blocks + 1, np.int64)
    block_offsets(reader, offsets.data)
    ends = torch.from_numpy(offsets[1:] // TAIL_NBYTES - 1).to(frame.device)
    tails = frame.view(-1, TAIL_NBYTES).index_select(0, ends).cpu().numpy()
    rows, blocks = np.empty((num_blocks, ROW), np.uint32), np.empty((num_blocks, BLOCK_NBYTES), np.uint8)
    device_blocks(reader, tails.data, rows.data, blocks.data)
    return rows, blocks.view(_BLOCK)[:, 0], offsets[1:]


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
