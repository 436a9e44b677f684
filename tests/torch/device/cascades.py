"""Blocks of cascades for tests of kernels: their streams, launch data, tables, and launches as a host makes them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from reference.tensorwire_reference.cascade import encode as encode_cascade
from reference.tensorwire_reference.cascade import widths_of
from reference.tensorwire_reference.planes import field_nbytes, pack_field, unpack_field
from tensorwire.torch.device.cuda_kernels import _later_nbytes
from tensorwire.torch.device.plan import RUN, CascadeLaunch, counts_of, plan
from tests.support.registry import FLOATS

from .opened import bytes_tensor, launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reference.tensorwire_reference import Cascade

    from .stand_in import StandIn

NAMES = {"BF16": "Bf16", "F16": "F16", "F32": "F32", "F8_E4M3": "F8E4M3", "F8_E5M2": "F8E5M2"}
_ALIGNMENT = 32
_DESCRIPTOR_NBYTES = 14  # of a cascade, the tag among them
_UNTOUCHED = 0x77


class Blocks(NamedTuple):
    """Blocks of one launch. `rows` are their launch data."""

    dtype: str
    launch: CascadeLaunch
    rows: list[list[int]]
    frame: bytes
    runs_per_block: int


def coded(
    words: Sequence[np.ndarray], dtype: str, kind: Cascade, runs_per_block: int, bits: int | None = None, trail: int = 0
) -> Blocks:
    """Blocks of these words, of any size, however long: a frame would store those that do not become shorter."""
    exponent_bits, mantissa_bits = FLOATS[dtype].exponent_bits, FLOATS[dtype].mantissa_bits
    bits = mantissa_bits + 1 if bits is None else bits
    rows, frame, later = [], b"", 0
    widths = widths_of(kind.table)[kind.variant or 0]
    for ordinal, block in enumerate(words):
        wide = block.astype(np.uint64)
        x = wide >> np.uint64(mantissa_bits) & np.uint64((1 << exponent_bits) - 1)
        rest = wide >> np.uint64(exponent_bits + mantissa_bits) << np.uint64(mantissa_bits)
        rest |= wide & np.uint64((1 << mantissa_bits) - 1)
        assert not (rest & np.uint64((1 << trail) - 1)).any()
        assert not (rest >> np.uint64(trail + bits)).any()
        streams, params, _ = encode_cascade(kind, x, exponent_bits)
        streams = pack_field(rest >> np.uint64(trail), bits) + streams
        counts = np.frombuffer(params[3:], "<u2").tolist()
        pairs = [counts[0] | counts[1] << 16, counts[2] | counts[3] << 16, counts[4]]
        rows.append([len(frame) // 32, ordinal, len(block), int.from_bytes(params[:3], "little"), *pairs, later])
        later += sum(-(-count // RUN) for count in counts[: len(widths) - 1])
        frame += streams + bytes(-(len(streams) + _DESCRIPTOR_NBYTES) % _ALIGNMENT + _DESCRIPTOR_NBYTES)
    whole = all(len(block) % RUN == 0 for block in words)
    return Blocks(dtype, CascadeLaunch(bits, trail, widths, whole), rows, frame, runs_per_block)


def blocks_of(frame: bytes, dtype: str) -> list[Blocks]:
    """The cascades of a frame, by launch, as the host plans them."""
    planned = plan(torch.frombuffer(bytearray(frame), dtype=torch.uint8))
    runs_per_block = planned.reader.info.block_words // RUN
    found = [(launch, rows) for launch, rows in planned.rows.items() if isinstance(launch, CascadeLaunch)]
    return [Blocks(dtype, launch, rows.tolist(), frame, runs_per_block) for launch, rows in found]


def _counts_of(row: list[int]) -> list[int]:
    counts: list[int] = counts_of(np.array(row)).tolist()
    return counts


class Tables(NamedTuple):
    """What is made of the streams when a frame is opened."""

    before: torch.Tensor
    before_later: torch.Tensor
    places: torch.Tensor
    rows_of_places: list[list[int]]  # whose number 7 is the begin in `places`


def tables_of(blocks: Blocks) -> Tables:
    widths, rows = blocks.launch.widths, blocks.rows
    last = max(row[1] for row in rows) + 1
    before = np.zeros(last * blocks.runs_per_block, np.uint16)
    later = np.zeros(rows[-1][7] + sum(-(-count // RUN) for count in _counts_of(rows[-1])) + 1, np.uint16)
    places, listed = [], []
    for row in rows:
        counts = [row[2], *_counts_of(row)]
        at = row[0] * 32 + field_nbytes(row[2], blocks.launch.rest_bits)
        first = row[7]
        listed.append([*row[:7], sum(map(len, places))])
        for tier, (w, count) in enumerate(zip(widths, counts, strict=False)):
            nbytes = field_nbytes(count, w)
            escaped = unpack_field(blocks.frame[at : at + nbytes], count, w) == (1 << w) - 1
            at += nbytes
            ranks = np.concatenate([[0], escaped.cumsum()])[:-1][::RUN] if count else np.zeros(0, np.uint16)
            if tier == 0:
                begin = row[1] * blocks.runs_per_block
                before[begin : begin + len(ranks)] = ranks
                places.append(escaped.nonzero()[0])
            else:
                later[first : first + len(ranks)] = ranks
                first += len(ranks)
            assert escaped.sum() == counts[tier + 1]
    return Tables(
        torch.from_numpy(before), torch.from_numpy(later),
        torch.from_numpy(np.concatenate(places).astype(np.uint16)), listed,
    )  # fmt: skip


def decoded(
    driver: StandIn, blocks: Blocks, tables: Tables, *, parts: int = 1, scratch: bool = False, resident: bool = False,
    frame: bytes | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """The words of each block by the kernels. `frame` takes the place of the blocks' own bytes."""
    word = FLOATS[blocks.dtype].word
    ordinals = [row[1] for row in blocks.rows]
    first_block, runs_per_block = min(ordinals), blocks.runs_per_block
    sizes = {row[1]: row[2] for row in blocks.rows}
    block_nbytes = runs_per_block * RUN * np.dtype(word).itemsize
    last = max(ordinals)
    numel = (last - first_block) * runs_per_block * RUN + sizes[last]
    memory = torch.full((numel * np.dtype(word).itemsize,), _UNTOUCHED, dtype=torch.uint8)
    data, grid, layout = (
        bytes_tensor(blocks.frame if frame is None else frame),
        (len(ordinals), parts),
        NAMES[blocks.dtype],
    )
    rows = bytes_tensor(np.array(tables.rows_of_places if resident else blocks.rows, np.uint32))
    if resident:
        arguments = data, rows, tables.places, memory, first_block, runs_per_block
        launch(driver, "words.cuh", f"resident_words<{layout}, 2>", grid, 256, *arguments)
    else:
        coding, room = blocks.launch, _later_nbytes(np.array(blocks.rows, np.uint32), blocks.launch.widths)
        place = ", InScratch" if scratch else ""
        numbers = f"{coding.rest_bits}, {coding.trail}, {coding.packed_widths:#x}, {str(coding.whole).lower()}{place}"
        extra = torch.empty(room * len(ordinals) * parts if scratch else 16, dtype=torch.uint8)
        launch(
            driver, "words.cuh", f"cascade_words<{layout}, {numbers}>", grid, 256, data, rows, tables.before,
            tables.before_later, memory, extra, first_block, runs_per_block, room,
            shared_nbytes=0 if scratch else room,
        )  # fmt: skip
    octets = memory.numpy()
    ends = {ordinal: (ordinal - first_block) * block_nbytes for ordinal in ordinals}
    result = []
    for ordinal in ordinals:
        begin = ends[ordinal]
        result.append(octets[begin : begin + sizes[ordinal] * np.dtype(word).itemsize].view(word))
    written = sorted((begin, begin + sizes[k] * np.dtype(word).itemsize) for k, begin in ends.items())
    for (_, end), (begin, _) in pairwise(written):
        assert (octets[end:begin] == _UNTOUCHED).all()
    return result
