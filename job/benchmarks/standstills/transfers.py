"""The transfers of which gloo makes a collective: what each member posts, and what it waits for, in its order.

A step is a verb, a buffer, and for what is posted the other end and the bytes. Posting a send or receive does not wait.
A wait is over once one more of the sends, or of the receives, of its buffer is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .programs import Call

_ELEMENT = 4  # bytes
_PER_RANK = 2  # segments of a ring


class Step(NamedTuple):
    verb: str  # "send", "recv", "wait send", "wait recv"
    buffer: str
    peer: int = -1  # by its rank in the group, as all here
    nbytes: int = 0


def algorithm(call: Call) -> str:
    """Operations with another one never meet. torch makes reduce_scatter of all_reduce for gloo."""
    return "all_reduce" if call.name == "reduce_scatter_tensor" else call.name


def steps(call: Call, own: int, size: int) -> list[Step]:
    """What this member does in the call."""
    nbytes = _ELEMENT * call.numel
    if call.name in ("all_reduce", "reduce_scatter_tensor"):
        return list(_all_reduce(nbytes * (size if call.name == "reduce_scatter_tensor" else 1), own, size))
    if call.name == "all_to_all":
        return list(_all_to_all(call.counts, own, size))
    if call.name == "monitored_barrier":
        return list(_monitored(own, size))
    if call.name == "barrier":
        return list(_barrier(own, size))
    if call.name == "all_gather_into_tensor":
        return list(_all_gather(nbytes, own, size))
    rooted = {"broadcast": _broadcast, "reduce": _reduce, "gather": _gather, "scatter": _scatter}
    return list(rooted[call.name](nbytes, own, size, call.root))


def _ring(nbytes: int, own: int, size: int, sent: int, received: int, buffers: tuple[str, str]) -> Iterator[Step]:
    """Segments go down the ring, two at a time. A segment that is beyond the end of the data is not sent."""
    count = _PER_RANK * size
    segment = _segment(nbytes, size)

    def length(first: int, index: int) -> int:
        offset = ((own + first) * _PER_RANK + index) * segment % (count * segment)
        return min(segment, nbytes - offset)

    for index in range(count):
        before = index - _PER_RANK
        if before >= 0 and length(received, before) > 0:
            yield Step("wait recv", buffers[0])
        if before >= 0 and length(sent, before) > 0:
            yield Step("wait send", buffers[1])
        if index < count - _PER_RANK:
            if length(received, index) > 0:
                yield Step("recv", buffers[0], (own + 1) % size, length(received, index))
            if length(sent, index) > 0:
                yield Step("send", buffers[1], (own - 1) % size, length(sent, index))


def _segment(nbytes: int, size: int) -> int:
    """Whole elements, so many that all segments together have room for the data."""
    return _ELEMENT * math.ceil(math.ceil(nbytes / (_PER_RANK * size)) / _ELEMENT)


def _all_reduce(nbytes: int, own: int, size: int) -> Iterator[Step]:
    if nbytes:
        yield from _ring(nbytes, own, size, 1, 2, ("scratch", "out"))
        yield from _ring(nbytes, own, size, 0, 1, ("out", "out"))


def _reduce(nbytes: int, own: int, size: int, root: int) -> Iterator[Step]:
    """Each member has a share of the result in the end, and sends it to the root."""
    if not nbytes:
        return
    yield from _ring(nbytes, own, size, 1, 2, ("scratch", "in"))
    share = _PER_RANK * _segment(nbytes, size)
    shares = {each: min(share, nbytes - each * share) for each in range(size)}
    if own != root and shares[own] > 0:
        yield Step("send", "out", root, shares[own])
        yield Step("wait send", "out")
    if own == root:
        others = [each for each in range(size) if each != root and shares[each] > 0]
        yield from (Step("recv", "out", each, shares[each]) for each in others)
        yield from (Step("wait recv", "out") for _ in others)


def _all_gather(nbytes: int, own: int, size: int) -> Iterator[Step]:
    """Halves of what each member has go up the ring."""
    halves = nbytes // 2, nbytes - nbytes // 2
    for index in range(2 * (size - 1) + 2):
        if index >= 2:
            yield Step("wait send", "out")
            yield Step("wait recv", "out")
        if index < 2 * (size - 1):
            yield Step("send", "out", (own + 1) % size, halves[index % 2])
            yield Step("recv", "out", (own - 1) % size, halves[index % 2])


def _all_to_all(counts: tuple[int, ...], own: int, size: int) -> Iterator[Step]:
    for distance in range(1, size):
        to, source = (own + distance) % size, (own - distance) % size
        yield Step("send", "in", to, _ELEMENT * counts[to])
        yield Step("recv", "out", source, _ELEMENT * counts[size + source])
    for _ in range(1, size):
        yield Step("wait send", "in")
        yield Step("wait recv", "out")


def _barrier(own: int, size: int) -> Iterator[Step]:
    distance = 1
    while distance < size:
        yield Step("recv", "out", (own - distance) % size)
        yield Step("send", "out", (own + distance) % size)
        yield Step("wait recv", "out")
        yield Step("wait send", "out")
        distance *= 2


def _monitored(own: int, size: int) -> Iterator[Step]:
    """Every member tells the first, one after another, and is answered once all have."""
    if own:
        yield from (Step("send", "out", 0), Step("wait send", "out"), Step("recv", "in", 0), Step("wait recv", "in"))
        return
    others = range(1, size)
    yield from (Step("recv", f"in {each}", each) for each in others)
    yield from (Step("wait recv", f"in {each}") for each in others)
    yield from (Step("send", f"out {each}", each) for each in others)
    yield from (Step("wait send", f"out {each}") for each in others)


def _broadcast(nbytes: int, own: int, size: int, root: int) -> Iterator[Step]:
    """Down a binomial tree: in each round twice as many members have the data."""
    virtual, sends = (own - root) % size, 0
    for bit in range((size - 1).bit_length()):
        peer = virtual ^ (1 << bit)
        if virtual >> (bit + 1) or peer >= size:
            continue
        if virtual >> bit & 1:
            yield Step("recv", "out", (peer + root) % size, nbytes)
            yield Step("wait recv", "out")
        else:
            yield Step("send", "out", (peer + root) % size, nbytes)
            sends += 1
    yield from (Step("wait send", "out") for _ in range(sends))


def _gather(nbytes: int, own: int, size: int, root: int) -> Iterator[Step]:
    if own != root:
        yield Step("send", "out", root, nbytes)
        yield Step("wait send", "out")
        return
    others = [each for each in range(size) if each != root]
    yield from (Step("recv", "out", each, nbytes) for each in others)
    yield from (Step("wait recv", "out") for _ in others)


def _scatter(nbytes: int, own: int, size: int, root: int) -> Iterator[Step]:
    if own != root:
        yield Step("recv", "out", root, nbytes)
        yield Step("wait recv", "out")
        return
    others = [each for each in range(size) if each != root]
    yield from (Step("send", f"in {each}", each, nbytes) for each in others)
    yield from (Step("wait send", f"in {each}") for each in others)
