"""Triton functions on planes and fields: four numbers a register, one in each byte.

A *group* is four consecutive numbers of a run. Bytes l to l + 3 of a plane of p bits hold the groups l / 4 + S / 4 * k
for k from 0 on, S being the bytes of the run: a shift and a mask give a group, with its numbers in the order of bytes.

A tile has one element for each 32-bit word of the *leading* plane, the one of most bits; its last axis, `j`, goes over
the words of a run. From a word come 8 / p groups, the *rows* k. The other planes of the field, and those of other
streams, are read for the same groups. `run` is a tensor that broadcasts with j. `whole` says that all runs are full:
all places are known when the kernel is compiled. Otherwise j and run are at most the last ones that exist, so that
nothing is read behind a stream; a run then may come twice.

That is for threads, each of which can load from an address of its own. A vector processor loads words that follow each
other. For it, `lead` is BY_GROUP: a tile has an element for each group of a run, 64 in one row, in their order. It
loads what surrounds a computed place and gathers in registers, so up to OVERREAD bytes behind a stream are read.

The language is that of Triton 3.2. Registers are unsigned; counts and places are 32-bit integers.
"""

# No `from __future__ import annotations`: Triton reads the annotations of kernels, and some releases only real ones.

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

BY_GROUP = tl.constexpr(8)
OVERREAD = 1024


@_jit
def lanes(lead: tl.constexpr, word_nbytes: tl.constexpr) -> tl.tensor:
    """j, for a tile whose groups of words are stored: a thread has as many neighbours as one store may write, so that
    loads and stores are shared out alike."""
    j = tl.arange(0, 8 * lead)[None, :]
    neighbours: tl.constexpr = 4 // word_nbytes
    return tl.max_contiguous(j, [1, neighbours])


@_jit
def bytes_of(value: tl.tensor) -> tl.tensor:
    """`value`, 0 to 255, in each byte."""
    return value.to(tl.uint32) * 0x01010101


@_jit
def field_nwords(count: tl.tensor, w: tl.constexpr) -> tl.tensor:
    """32-bit words of a field of `count` numbers of `w` bits, w up to 31."""
    nwords = count * 0
    for i in tl.static_range(5):
        if w & (16 >> i):
            nwords += (count * (16 >> i) + 31) >> 5
    return nwords


@_jit
def stream_nwords(count: tl.tensor, w: tl.constexpr, whole: tl.constexpr) -> tl.tensor:
    """The same; written so that the compiler sees the alignment if all runs are full."""
    return (count >> 8) * (8 * w) if whole else field_nwords(count, w)


@_jit
def row_stride(in_run: tl.tensor, p: tl.constexpr, whole: tl.constexpr) -> tl.tensor:
    """Words of a run of `in_run` numbers in a plane of `p` bits: so many groups lie between two rows."""
    return in_run * 0 + 8 * p if whole else (in_run * p + 31) >> 5


@_jit
def look_up(
    stream: tl.tensor, start: tl.tensor, place: tl.tensor, length: tl.constexpr, lead: tl.constexpr
) -> tl.tensor:
    """Words `place`, below `length`, of those that begin at word `start` of a stream."""
    if lead == BY_GROUP:
        window = tl.load(stream + (start + tl.arange(0, length)[None, :]))
        # Triton-Ascend gathers floats, and no 32-bit integers.
        words = tl.gather(window.to(tl.float32, bitcast=True), place, 1).to(tl.uint32, bitcast=True)
    else:
        words = tl.load(stream + start + place)
    return words


@_jit
def group(
    plane: tl.tensor, run: tl.tensor, in_run: tl.tensor, j: tl.tensor, k: tl.constexpr,
    p: tl.constexpr, lead: tl.constexpr, whole: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Row k of the tile of a plane of `p` bits (1 to 8) whose leading plane has `lead` bits."""
    if whole:
        if p >= lead:
            at = run * (8 * p) + (8 * lead * k) % (8 * p) + j
            words = tl.load(plane + at) >> (p * (8 * lead * k // (8 * p)))
        elif lead == BY_GROUP:
            shifts = (tl.arange(0, 8 // p) * p).to(tl.uint32)
            words = tl.load(plane + run * (8 * p) + tl.arange(0, 8 * p)[None, :])
            words = tl.reshape(words[:, None, :] >> shifts[None, :, None], [run.shape[0], 64])
        else:
            at = run * (8 * p) + j % (8 * p)
            words = tl.load(plane + at) >> (lead * k + p * (j // (8 * p))).to(tl.uint32)
    elif p == lead:
        words = tl.load(plane + run * (8 * p) + j) >> (p * k)
    else:
        g = tl.minimum(row_stride(in_run, lead, False) * k + j, (in_run - 1) >> 2)
        stride = row_stride(in_run, p, False)
        row = (g * ((65535 + stride) // stride)) >> 16  # g // stride, for g and strides up to 64
        words = look_up(plane, run * (8 * p), g - row * stride, 8 * p, lead) >> (p * row).to(tl.uint32)
    return words & (((1 << p) - 1) * 0x01010101)


@_jit
def numbers_in_group(
    field: tl.tensor, count: tl.tensor, run: tl.tensor, in_run: tl.tensor, j: tl.tensor, k: tl.constexpr,
    w: tl.constexpr, lead: tl.constexpr, whole: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Row k of the tile of a field of `w` bits, 1 to 8."""
    numbers = (run + j).to(tl.uint32) * 0
    for i in tl.static_range(1, 5):
        if w & (16 >> i):
            plane = field + stream_nwords(count, w & -(32 >> i), whole)
            numbers |= group(plane, run, in_run, j, k, 16 >> i, lead, whole) << (w & -(32 >> i))
    return numbers


@_jit
def escapes_in(digits: tl.tensor, w: tl.constexpr) -> tl.tensor:
    """1 in each byte whose digit of `w` bits (1 to 4) has all of them set."""
    if w == 1:
        escapes = digits
    elif w == 2:
        escapes = digits & (digits >> 1) & 0x01010101
    else:
        escapes = ((digits + 0x01010101) >> w) & 0x01010101
    return escapes


@_jit
def merge(a: tl.tensor, b: tl.tensor, mask: tl.constexpr) -> tl.tensor:
    """a where `mask` has ones, else b."""
    return (a & mask) | (b & (0xFFFFFFFF ^ mask))


@_jit
def select_following(names: tl.tensor, escapes: tl.tensor, following: tl.tensor) -> tl.tensor:
    """`names`, where the escapes are replaced, in order, by the bytes of `following` from the first on."""
    escaped = escapes * 255
    # A byte moves up by one for each one before it that is no escape: `up` has 8 times their number.
    up = (escapes ^ 0x01010101) * 0x08080800
    moved = (following & 0xFF) | ((following << ((up >> 8) & 0xFF)) & 0xFF00)
    moved = moved | ((following << ((up >> 16) & 0xFF)) & 0xFF0000)
    moved = moved | ((following << (up >> 24)) & 0xFF000000)
    return (names & ~escaped) | (moved & escaped)


@_jit
def add_in_bytes(digits: tl.tensor, first: tl.tensor, below: tl.tensor, jump: tl.tensor) -> tl.tensor:
    """`first + digit` in each byte, and `jump` more from digit `below` on. No sum may exceed 255."""
    behind = ((digits + bytes_of(128 - below)) >> 7) & 0x01010101
    return bytes_of(first) + digits + behind * jump.to(tl.uint32)


@_jit
def subtract_in_bytes(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """a - b in each byte, modulo 256."""
    return ((a | 0x80808080) - (b & 0x7F7F7F7F)) ^ ((a ^ ~b) & 0x80808080)
