"""Reports that are made to do harm: what they can take of the analyzer's memory and time, and that none ends it."""

from __future__ import annotations

import gc
import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwire.errors import FormatError, LimitExceededError
from tensorwire_job.protocol import encoding
from tensorwire_job.protocol.connection import _from_text
from tensorwire_job.protocol.decoding import Decoder
from tensorwire_job.protocol.encoding import DETAIL, EDGE, GROUP, KINDS, RANK, TRANSFER
from tensorwire_job.protocol.states import NO_STATE
from tensorwire_job.service.merge import Nodes
from tests.support.drawn import drawn

NODE_NBYTES = 64 << 20
"""job/docs/threat-model.md says that the reports of a node take no more."""
NUMBER_NBYTES = NODE_NBYTES // encoding.MAX_INTEGERS

BIG = (1 << 62) - 1
WIDE = "\U0001f600"  # four bytes a character


def rows(values: list[list[int]]) -> bytes:
    flat = [value for row in values for value in row]
    return struct.pack(f"<{len(flat)}q", *flat)


def head(rank: int) -> list[Any]:
    return [rank, 1 << 20, BIG, 0, 0, "", ""]


def row(number: int, groups: int = 0) -> list[int]:
    length = RANK + GROUP * groups
    return [
        length,
        number,
        83,
        *[BIG] * 6,
        0,
        *[n for g in range(groups) for n in (g, BIG, BIG, BIG, BIG, -1, BIG, 0)],
    ][: 1 + length]


def node_of(num_ranks: int, **others: Any) -> dict[str, Any]:
    heads = [head(rank) for rank in range(num_ranks)]
    return {"clock": 1, "full": True, "heads": heads, "ranks": rows([row(n) for n in range(num_ranks)]), **others}


def groups_of(count: int, name: str = "") -> list[list[Any]]:
    return [[f"{number:016x}", name, BIG] for number in range(count)]


def text(seed: int, length: int) -> str:
    return (WIDE * length)[: max(length - 6, 0)] + f"{seed:06x}"[:length]


WORKER = [BIG, text(1, 64), text(2, 64), text(3, 64), BIG]
SMALL_WORKER = [BIG, WIDE, WIDE, WIDE, BIG]

REPORTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "ranks": lambda: [node_of(600)],
    "ranks in groups": lambda: [
        node_of(100, groups=groups_of(60), ranks=rows([row(number, 60) for number in range(100)]))
    ],
    "ranks one by one": lambda: [
        node_of(300),
        *({"clock": 1, "ranks": rows([row(number)])} for number in range(0, 300, 7)),
    ],
    "works": lambda: [node_of(1, works=[["", "", BIG, BIG - n, BIG] for n in range(1000)])],
    "works in long words": lambda: [
        node_of(1, works=[[text(n, 256), text(~n & 0xFFFFF, 256), BIG, BIG, BIG] for n in range(500)])
    ],
    "works in short words": lambda: [
        node_of(1, works=[[text(n, 15), text(n + 5000, 15), BIG, BIG, BIG] for n in range(700)])
    ],
    "groups": lambda: [node_of(1, groups=groups_of(1000, text(1, 20)))],
    "members": lambda: [
        node_of(1, groups=groups_of(1000), members=[[n, n, 2, 500_000, 3, 100_000, 4, 10_000 + n] for n in range(1000)])
    ],
    "details": lambda: [
        node_of(1, groups=groups_of(1000), details=rows([[0, n, *[BIG - n] * (DETAIL - 2)] for n in range(1000)]))
    ],
    "edges": lambda: [
        node_of(
            1,
            links=[[0, 1, f"10.0.{n >> 8}.{n & 255}:65535", text(n, 20)] for n in range(800)],
            edges=rows([[n, *[BIG] * (EDGE - 1)] for n in range(800)]),
        )
    ],
    "edges one by one": lambda: [
        node_of(
            1,
            links=[[0, 1, f"{n}", ""] for n in range(800)],
            edges=rows([[n, *[BIG] * (EDGE - 1)] for n in range(800)]),
        ),
        *({"clock": 1, "edges": rows([[n, *[5] * (EDGE - 1)]])} for n in range(780)),
    ],
    "states": lambda: [
        node_of(100, states=[[n, 0, BIG, text(n, 64), BIG, 0, BIG, text(n, 64), BIG, []] for n in range(100)])
    ],
    "workers": lambda: [node_of(15, states=[[n, *NO_STATE[:-1], [WORKER] * 64] for n in range(15)])],
    "workers in short words": lambda: [
        node_of(15, states=[[n, *NO_STATE[:-1], [SMALL_WORKER] * 64] for n in range(15)])
    ],
    "transfers": lambda: [node_of(600, transfers=rows([[n, BIG, BIG] for n in range(600)]))],
}


def through_wire(report: dict[str, Any]) -> dict[str, Any]:
    """With texts and lists of its own, as those of a message are."""
    parts = {name: value for name, value in report.items() if isinstance(value, bytes)}
    return json.loads(json.dumps({name: value for name, value in report.items() if name not in parts})) | parts


@pytest.mark.parametrize("what", REPORTS)
def test_numbers_are_as_large_as_they_count(what: str) -> None:
    """All that a node sends is counted, and no number stands for more memory than the page says."""
    reports = [through_wire(report) for report in REPORTS[what]()]
    messages = [json.dumps({k: v for k, v in r.items() if not isinstance(v, bytes)}).encode() for r in reports]
    parts = [{k: v for k, v in r.items() if isinstance(v, bytes)} for r in reports]
    del reports

    def taken() -> Nodes:
        nodes = Nodes("run")
        nodes.join("n", 0.0)
        for message, part in zip(messages, parts, strict=True):
            nodes.report("n", json.loads(message) | {k: bytes(bytearray(v)) for k, v in part.items()}, 0.0)
        nodes.observe(0.0)
        return nodes

    taken()  # what is loaded once is no report's
    gc.collect()
    tracemalloc.start()
    try:
        nodes = taken()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept <= NUMBER_NBYTES * nodes._num_integers + (1 << 14)


def test_memory_of_a_node_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes descriptions until it is refused, here after an eighth of the numbers."""
    monkeypatch.setattr(encoding, "MAX_INTEGERS", encoding.MAX_INTEGERS // 8)
    decoder = Decoder()
    decoder.apply(through_wire(node_of(1)))
    texts = [text(1, 256), text(2, 256)]
    sent = [
        {"clock": 1, "works": [[*texts, 0, 0, 0]] * (1 << 9)},
        {"clock": 1, "heads": [[0] * 5 + texts] * (1 << 9)},
    ]
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceededError, match="numbers"):  # noqa: PT012 - which of them does not matter
            for report in sent * 8:
                decoder.apply(through_wire(report))
        assert tracemalloc.get_traced_memory()[0] < 1.1 * NODE_NBYTES / 8
    finally:
        tracemalloc.stop()


def seconds_of_small_reports(num_ranks: int, report: dict[str, Any]) -> float:
    decoder = Decoder()
    size = range(num_ranks)
    decoder.apply(
        node_of(
            num_ranks,
            groups=groups_of(2),
            details=rows([[n, 0, *range(DETAIL - 2)] for n in size]),
            links=[[n, -1, str(n), ""] for n in size],
            edges=rows([[n, *[0] * (EDGE - 1)] for n in size]),
            states=[[n, 0, 1, "", 1, 0, 1, "", 1, []] for n in size],
            transfers=rows([[n, 1, 1] for n in size]),
            members=[[0, 0, 2, 1]],
        )
    )
    decoder.snapshot()
    decoder.apply(report)  # the first after an observation may go over all of the node
    spent = []
    for _ in range(21):
        start = time.thread_time()
        decoder.apply(report)
        spent.append(time.thread_time() - start)
    return median(spent)


@pytest.mark.parametrize(
    "report",
    [
        {"ranks": rows([row(3)])},
        {"ranks": rows([row(4, 1)]), "gone": [4]},
        {"details": rows([[3, 0, *range(DETAIL - 2)]])},
        {"edges": rows([[3, *[7] * (EDGE - 1)]])},
        {"edges": rows([[4, *[7] * (EDGE - 1)]]), "closed": [4]},
        {"states": [[3, *NO_STATE]]},
        {"transfers": rows([[3] * TRANSFER])},
        {"members": [[0, 0, 2, 1]]},
    ],
    ids=lambda report: "+".join(report),
)
def test_small_report_of_a_large_node_takes_little_time(report: dict[str, Any]) -> None:
    small, large = (seconds_of_small_reports(size, {"clock": 1, **report}) for size in (20, 3000))
    assert large < 20 * small


# All that may come is a report or is refused.

numbers = st.one_of(
    st.integers(-2, 12),
    st.sampled_from([1 << 20, (1 << 20) - 1, (1 << 31) - 1, 1 << 62, BIG, (1 << 63) - 1, 1 << 64, -(1 << 63), 10**400]),
    st.floats(),
    st.booleans(),
)
scalars = st.one_of(st.none(), numbers, st.text(max_size=4), st.sampled_from(["", "x" * 257, "\x00", "\ud800"]))
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
packed = st.one_of(
    st.binary(max_size=200),
    st.lists(st.integers(-2, 70) | st.sampled_from([BIG, 1 << 20, -(1 << 62)]), max_size=60).map(
        lambda values: rows([values])
    ),
)


def descriptions(kind: str) -> st.SearchStrategy[Any]:
    fields = {int: st.integers(-1, 9) | st.sampled_from([1 << 20, BIG, (1 << 64) - 1]), str: st.text(max_size=5)}
    return st.lists(st.tuples(*(fields[each] for each in KINDS[kind])).map(list), max_size=4)


state_rows = st.tuples(
    st.integers(-1, 4), st.integers(-1, 5), numbers, st.text(max_size=3), numbers, st.integers(-1, 5), numbers,
    st.text(max_size=3), numbers, st.lists(st.just([1, "a", "S", "c", 0]) | json_values, max_size=3),
).map(list)  # fmt: skip
reports = st.fixed_dictionaries(
    {"clock": st.integers(-1, 1 << 62) | st.just(BIG) | scalars},
    optional={
        "full": st.booleans() | json_values,
        **{kind: descriptions(kind) | json_values for kind in KINDS},
        **dict.fromkeys(("ranks", "details", "edges", "transfers"), packed | json_values),
        "gone": st.lists(st.integers(0, 5), max_size=3) | json_values,
        "closed": st.lists(st.integers(0, 5), max_size=3) | json_values,
        "members": st.lists(st.lists(st.integers(-1, 1 << 20), max_size=9), max_size=3) | json_values,
        "states": st.lists(state_rows, max_size=3) | json_values,
    },
)
ROWS = {"ranks": RANK + 1, "details": DETAIL, "edges": EDGE, "transfers": TRANSFER}


@drawn(60, 150, deadline=1000)
@given(st.lists(reports, min_size=1, max_size=4), st.booleans())
def test_whatever_is_sent_is_a_report_or_refused(sent: list[dict[str, Any]], with_good: bool) -> None:
    nodes = Nodes("run")
    nodes.join("n", 0.0)
    good = node_of(
        3, groups=groups_of(2), works=[["send", "", 1, 2, 0]], links=[[0, -1, "a", "b"], [1, 2, "c", "d"]],
        ranks=rows([row(0, 1), row(1), row(2, 2)]), edges=rows([[0, *[1] * (EDGE - 1)]]),
    )  # fmt: skip
    for report in [good, *sent] if with_good else sent:
        try:
            nodes.report("n", report, 0.0)
        except FormatError:
            nodes.join("n", 0.0)
        seen = nodes.observe(0.0)
        for rank in seen.ranks.values():
            assert 0 <= rank.rank < 1 << 20
            assert rank.heartbeat_seconds >= 0
        list(seen.edges)
        assert 0 <= nodes._num_integers <= encoding.MAX_INTEGERS


@drawn(100, 200, deadline=1000)
@given(st.binary(max_size=64) | st.tuples(json_values, st.binary(max_size=32)).map(
    lambda parts: json.dumps(parts[0]).encode() + b"\n" + parts[1]
))  # fmt: skip
def test_whatever_comes_is_a_message_or_none(message: bytes) -> None:
    try:
        found = _from_text(message)
    except (ValueError, TypeError, RecursionError):
        return
    assert type(found) is dict


@pytest.mark.parametrize("unit", [b"[],", b"{},", b'"a",', b"1.5,", b"[[]],", b'{"a":1},'])
def test_message_takes_a_bounded_multiple_while_it_is_read(unit: bytes) -> None:
    message = b'{"a":[' + unit * (200_000 // len(unit)) + b"0]}\n"
    tracemalloc.start()
    try:
        _from_text(message)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(message)
    finally:
        tracemalloc.stop()
