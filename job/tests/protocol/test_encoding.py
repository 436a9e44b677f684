"""Reports of agents: what is sent, that it arrives as it was, and that nothing else is taken for a report."""

from __future__ import annotations

import copy
import json
import math
import random
import struct
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import pytest

from tensorwire.errors import CorruptDataError, FormatError, LimitExceededError
from tensorwire_job.model import (
    Call,
    Edge,
    ExitKind,
    Life,
    Observation,
    Operation,
    Process,
    ProcessGroup,
    Rank,
    Setup,
    Timing,
    Worker,
)
from tensorwire_job.protocol import encoding
from tensorwire_job.protocol.decoding import Decoder
from tensorwire_job.protocol.encoding import Encoder, from_json, to_json
from tensorwire_job.protocol.states import NO_STATE

LIVES = get_args(Life)


def near(left: Any, right: Any) -> bool:
    """Equal but for what microseconds and hundredths of a second of CPU time cut off."""
    if is_dataclass(left):
        return type(left) is type(right) and all(
            near(getattr(left, f.name), getattr(right, f.name)) for f in fields(left)
        )
    if isinstance(left, float):
        return isinstance(right, float) and math.isclose(left, right, abs_tol=0.011, rel_tol=1e-9)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(near, left, right))
    return bool(left == right)


def operation(rng: random.Random) -> Operation:
    return Operation(
        rng.randrange(1, 1 << 40),
        rng.choice(["all_reduce", "send", "", "ünï"]),
        rng.choice(["BF16", ""]),
        rng.choice([-1, 0, 1 << 40]),
        rng.choice([-1, 0, 7]),
        rng.choice([0, 1, (1 << 64) - 1]),
    )


MEMBERS = [(), range(4), range(3, 30, 8), (0, 1, 16, 17), (1, 2, 5, 6, 33, 34, 37, 38)]


def process_group(rng: random.Random, number: int) -> ProcessGroup:
    return ProcessGroup(
        id=f"{number:016x}",
        name=rng.choice(["default_pg", "tp", ""]),
        size=rng.randrange(1, 9),
        enqueued=rng.randrange(1 << 40),
        completed=rng.randrange(1 << 40),
        open_seconds=rng.choice([None, rng.uniform(0, 500)]),
        idle_seconds=rng.choice([None, rng.uniform(0, 500)]),
        operation=rng.choice([None, operation(rng)]),
        timing=rng.choice([None, Timing(5, 8, 1.5, 0.1, 0.4, 1 << 33, 2)]),
        sent_bytes=rng.choice([-1, 0, 1 << 50]),
        received_bytes=rng.choice([-1, 12345]),
        baseline_rate=rng.choice([None, 0.0, 123.45]),
        members=MEMBERS[number % len(MEMBERS)],
    )


def rank(rng: random.Random, number: int) -> Rank:
    process = Process(
        rng.choice(LIVES),
        rng.choice("RSDT?"),
        rng.uniform(0, 1e6),
        rng.uniform(0, 1e3),
        rng.randrange(100),
        rng.uniform(0, 10),
        rng.choice(["", "exit 1", "ValueError: ü"]),
        rng.choice([None, rng.uniform(0, 100)]),
        rng.choice(get_args(ExitKind)),
        rng.choice([None, rng.uniform(0, 100)]),
        rng.choice(["", "SIGTERM"]),
        rng.choice([None, rng.uniform(0, 100)]),
    )
    process.written_bytes, process.read_bytes = rng.choice([(-1, -1), (0, 0), (1 << 40, 1 << 20)])
    process.workers = rng.choice([[], [Worker(7, "pt_data_worker", "S", "pipe_read", 12.5), Worker(8, "", "?")]])
    groups = [process_group(rng, g) for g in rng.sample(range(10), rng.randrange(4))]
    heartbeat = rng.choice([0.0, rng.uniform(1.1, 50)])
    flags = rng.random() < 0.5, rng.random() < 0.5
    return Rank(
        number, 8, "n", 1000 + number, 2, process, groups, heartbeat, flags[0],
        rng.choice(["", "checkpoint"]), flags[1],
        rng.choice(get_args(Setup)), rng.choice([None, rng.uniform(0, 100)]),
        rng.choice(["", "torch.save"]), rng.choice([None, rng.uniform(0, 100)]),
        *rng.choice([((), None), (history(rng), rng.uniform(0, 100))]),
    )  # fmt: skip


def history(rng: random.Random) -> tuple[Call, ...]:
    return tuple(
        Call(
            f"{rng.randrange(4):016x}",
            operation(rng),
            rng.choice([0, (1 << 32) - 1]),
            rng.choice([(), (3, 0, 1 << 40)]),
        )
        for _ in range(rng.randrange(1, 97))
    )


def edge(rng: random.Random, owner: int) -> Edge:
    counters = rng.randrange(1 << 50), rng.randrange(1 << 50), rng.uniform(0, 100)
    queues = rng.randrange(1 << 20), rng.randrange(1 << 20), rng.randrange(8), rng.randrange(100)
    port = rng.randrange(4)
    return Edge(owner, rng.choice([-1, 3]), *counters, *queues, 0.001, f"10.0.0.{owner}:{port}", "10.0.0.9:1")


def observation(rng: random.Random, time: float) -> Observation:
    ranks = {number: rank(rng, number) for number in rng.sample(range(8), rng.randrange(8))}
    edges = {(e.local, e.peer): e for e in (edge(rng, number) for number in ranks for _ in range(2))}
    return Observation(time, "run", 8, ranks, list(edges.values()))


def through_json(report: dict[str, Any]) -> dict[str, Any]:
    return from_json(json.loads(json.dumps(to_json(report), allow_nan=False)))


def decoded(decoder: Decoder, elapsed: float = 0.0) -> tuple[dict[int, Rank], list[Edge]]:
    return {rank.rank: rank for rank in decoder.ranks("n", elapsed)}, list(decoder.connections())


@pytest.mark.parametrize("seed", range(6))
def test_what_is_sent_arrives(seed: int) -> None:
    rng = random.Random(seed)
    encoder, decoder = Encoder(), Decoder()
    seen = observation(rng, 1000.0)
    for step in range(12):
        decoder.apply(through_json(encoder.report(seen)))
        ranks, edges = decoded(decoder)
        assert ranks.keys() == seen.ranks.keys()
        for number, expected in seen.ranks.items():
            assert near(expected, ranks[number]), step
        by_ends = {(e.local, e.remote, e.peer): e for e in edges}
        assert len(by_ends) == len(edges) == len(seen.edges)
        assert all(near(e, by_ends[e.local, e.remote, e.peer]) for e in seen.edges)
        # Some things change, some stay, some go.
        later = observation(rng, seen.time + 1)
        kept = {number: aged(kept, 1.0) for number, kept in seen.ranks.items() if rng.random() < 0.5}
        seen = replace(later, ranks={**later.ranks, **kept})
        seen.edges = [e for e in seen.edges if e.rank in seen.ranks]


def aged(rank: Rank, seconds: float) -> Rank:
    """The same, if nothing but time has passed."""
    rank = copy.deepcopy(rank)
    for group in rank.process_groups:
        group.open_seconds = None if group.open_seconds is None else group.open_seconds + seconds
        group.idle_seconds = None if group.idle_seconds is None else group.idle_seconds + seconds
    process = rank.process
    for owner, name in (
        (process, "gone_seconds"), (process, "exit_seconds"), (process, "signal_seconds"),
        (rank, "setup_seconds"), (rank, "activity_seconds"),
    ):  # fmt: skip
        if getattr(owner, name) is not None:
            setattr(owner, name, getattr(owner, name) + seconds)
    if rank.heartbeat_seconds:
        rank.heartbeat_seconds += seconds
    return rank


def test_nothing_is_sent_while_only_time_passes() -> None:
    rng = random.Random(1)
    encoder = Encoder()
    first = observation(rng, 50.0)
    assert first.ranks
    full = encoder.report(first)
    assert full["full"]
    assert full["ranks"]
    second = replace(first, time=53.0, ranks={number: aged(rank, 3.0) for number, rank in first.ranks.items()})
    report = encoder.report(second)
    assert report == {"clock": 53_000_000}


def test_ages_grow_with_the_time_since_the_report() -> None:
    decoder = Decoder()
    group = ProcessGroup("a", "pg", 2, 5, 4, 10.0, 12.0, Operation(5))
    rank = Rank(0, 2, "n", 1, 0, Process("lost", gone_seconds=7.0), [group], heartbeat_seconds=20.0)
    decoder.apply(Encoder().report(Observation(100.0, "run", 2, {0: rank})))
    later = decoded(decoder, elapsed=2.5)[0][0]
    assert (later.process_groups[0].open_seconds, later.process_groups[0].idle_seconds) == (12.5, 14.5)
    assert later.process.gone_seconds == 9.5
    assert later.heartbeat_seconds == 22.5


def test_fresh_heartbeats_are_no_news() -> None:
    encoder = Encoder()
    rank = Rank(0, 2, "n", 1, 0, Process("running", "S"), [], heartbeat_seconds=0.01)
    encoder.report(Observation(100.0, "run", 2, {0: rank}))
    rank = replace(rank, heartbeat_seconds=0.04)
    assert encoder.report(Observation(101.0, "run", 2, {0: rank})) == {"clock": 101_000_000}


def test_encoder_starts_again_before_its_tables_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_DESCRIPTIONS", 16)
    encoder, decoder = Encoder(), Decoder()
    fulls = 0
    for step in range(100):
        group = ProcessGroup("a", "pg", 2, step, step, None, None, Operation(step, numel=step))
        rank = Rank(0, 2, "n", 1, 0, Process("running", "S"), [group])
        report = encoder.report(Observation(step, "run", 2, {0: rank}))
        fulls += "full" in report
        decoder.apply(report)
        assert decoded(decoder)[0][0].process_groups[0].operation == Operation(step, numel=step)
    assert 5 < fulls < 25


# Messages that are no report.


def report_of(seed: int = 5) -> dict[str, Any]:
    seen = observation(random.Random(seed), 10.0)
    assert len(seen.ranks) > 3
    return through_json(Encoder().report(seen))


def rows(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


LATER: dict[str, Any] = {"calls": [], "members": [], "states": [], "transfers": b""}
"""Members that may be left out."""

GOOD_ROW = (9, 0, 83, 0, 0, 0, 0, -1, -1, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"clock": "now"}, {"clock": 1.5}, {"clock": None}, {"clock": -1}, {"clock": 10**400},
        {"full": True, "heads": 5}, {"heads": [[1]]}, {"heads": [[0, 1 << 40, 1, 0, 0, "", ""]]},
        {"heads": [[1 << 40, 8, 1, 0, 0, "", ""]]}, {"heads": [[1 << 20, 8, 1, 0, 0, "", ""]]},
        {"heads": [[-1, 8, 1, 0, 0, "", ""]]},
        {"heads": [[0, 8, 1, 0, 0, "", 5]]}, {"heads": [[True, 8, 1, 0, 0, "", ""]]}, {"works": [["", "", 1.5, 0, 0]]},
        {"groups": [["x" * 257, "", 1]]}, {"groups": {"a": 1}}, {"links": [[0, 0, "a", None]]},
        {"links": [[1 << 20, 0, "a", "b"]]}, {"links": [[0, (1 << 64) - 1, "a", "b"]]},
        {"ranks": b"!"}, {"ranks": ""}, {"ranks": 5}, {"ranks": rows(0)}, {"ranks": rows(-1)}, {"ranks": rows(8)},
        {"ranks": rows(1 << 62)}, {"ranks": rows(*GOOD_ROW[:-1])}, {"ranks": rows(10, *GOOD_ROW[1:], 0)},
        {"ranks": rows(*GOOD_ROW[:-1], (1 << 63) - 1)},
        {"ranks": rows(9, 1 << 40, *GOOD_ROW[2:])}, {"ranks": rows(9, -1, *GOOD_ROW[2:])},
        {"ranks": rows(17, *GOOD_ROW[1:], 99, 0, 0, 0, 0, -1, 0, 0)},
        {"ranks": rows(17, *GOOD_ROW[1:], 0, 0, 0, 0, 0, 99, 0, 0)},
        {"ranks": rows(17, *GOOD_ROW[1:], -1, 0, 0, 0, 0, -1, 0, 0)},
        {"details": rows(*range(10))}, {"details": rows(99, *[0] * 10)}, {"edges": rows(*range(8))},
        {"edges": rows(99, *[0] * 8)}, {"edges": rows(-1, *[0] * 8)}, {"edges": rows(*[0] * 18)},
        {"gone": [12345]}, {"gone": [[]]}, {"gone": 1},
        {"closed": [12345]}, {"closed": None},
        {"members": 5}, {"members": [[]]}, {"members": [[99, 0, 1, 1]]}, {"members": [[-1, 0, 1, 1]]},
        {"members": [[0, 0, 1]]}, {"members": [[0, "0", 1, 1]]}, {"members": [[0, 1 << 20, 1, 1]]},
        {"members": [[0, 0, *[2] * 8]]}, {"members": [["0", 0, 1, 1]]}, {"members": [[0.5, 0, 2, 1]]},
        {"transfers": rows(99, 0, 0)}, {"transfers": rows(0, 0)}, {"transfers": "x"}, {"states": 5}, {"states": [5]},
        {"calls": 5}, {"calls": [5]}, {"calls": [[0, -1, [], [[0, 1, 0, 0]]]]}, {"calls": [[99, -1, [], []]]},
        {"calls": [[0, -1, ["a"], [[0, 1, 99, 0]]]]}, {"calls": [[0, -1, ["a"], [[0, 1, 0]]]]},
        {"calls": [[0, -1, ["a"], [[0, 1.0, 0, 0]]]]}, {"calls": [[0, -2, [], []]]},
        {"calls": [[0, -1, ["a" * 65], []]]},
        {"states": [[99, *NO_STATE]]}, {"states": [[0, *NO_STATE, 1]]}, {"states": [[0, 4, *NO_STATE[1:]]]},
        {"states": [[0, -1, *NO_STATE[1:]]]}, {"states": [[0, 0, -1, "x" * 65, *NO_STATE[3:]]]},
        {"states": [[0, 0, 1 << 62, *NO_STATE[2:]]]}, {"states": [[0, 0, -1, "", -1, 5, *NO_STATE[5:]]]},
        {"states": [[0, *NO_STATE[:-1], [[1, "a", "S", "c"]]]]}, {"states": [[0, *NO_STATE[:-1], [5]]]},
        {"states": [[0, *NO_STATE[:-1], [[1, "a", "S", "c", 0]] * 65]]},
        {"states": [[0, *NO_STATE[:-1], [[1, 2, "S", "c", 0]]]]},
    ],
)  # fmt: skip
def test_what_is_no_report_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptDataError):
        Decoder().apply({**report_of(), **change})


DESCRIPTIONS = {
    "heads": [0, 8, 1, 0, 0, "", ""],
    "groups": ["a", "", 8],
    "works": ["", "", -1, -1, (1 << 64) - 1],
    "links": [0, -1, "a", "b"],
}
NUMBERS = [(kind, index) for kind, entry in DESCRIPTIONS.items() for index, v in enumerate(entry) if type(v) is int]


@pytest.mark.parametrize(("kind", "index"), NUMBERS)
def test_every_number_of_a_description_has_a_range(kind: str, index: int) -> None:
    nothing = {name: [] for name in DESCRIPTIONS} | {"ranks": b"", "details": b"", "edges": b""} | LATER
    report = report_of() | nothing | {kind: [DESCRIPTIONS[kind]]}
    Decoder().apply(report)
    for number in (-2, 1 << 64, 10**400):
        entry = [*DESCRIPTIONS[kind]]
        entry[index] = number
        with pytest.raises(CorruptDataError):
            Decoder().apply(report | {kind: [entry]})


def test_what_is_empty_may_be_left_out() -> None:
    decoder = Decoder()
    decoder.apply(report_of() | LATER)
    assert {rank.setup for rank in decoded(decoder)[0].values()} == {""}
    before = decoded(decoder)
    decoder.apply({"clock": 10_000_000})
    assert decoded(decoder) == before
    with pytest.raises(CorruptDataError):
        decoder.apply({})


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_damaged_rows_are_refused_or_make_some_observation(first: int) -> None:
    for seed in range(first, first + 20):
        rng = random.Random(seed)
        report = report_of()
        for kind in ("ranks", "details", "edges", "transfers"):
            data = bytearray(report[kind])
            for _ in range(rng.randrange(1, 4)):
                if data:
                    data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            report[kind] = bytes(data)
        decoder = Decoder()
        try:
            decoder.apply(report)
        except FormatError:
            continue
        ranks, edges = decoded(decoder, 1.0)
        Decoder().apply(Encoder().report(Observation(1.0, "run", 8, ranks, edges)))  # it can be handed on


def test_greatest_numbers_can_be_handed_on() -> None:
    """What the analyzer keeps of a report can be read, however large its numbers are."""
    most = (1 << 62) - 1
    report = report_of() | LATER | {
        "heads": [[0, 8, 1, 0, 0, "", ""]], "groups": [["c", "", 8]], "works": [], "links": [[0, 1, "a", "b"]],
        "ranks": rows(17, 0, *[most] * 8, 0, *[most] * 4, -1, most, most), "details": rows(0, 0, *[most] * 9),
        "edges": rows(0, *[most] * 8),
    }  # fmt: skip
    decoder = Decoder()
    decoder.apply(report)
    for now in (0.0, 1e6):
        ranks, edges = decoded(decoder)
        Decoder().apply(through_json(Encoder().report(Observation(now, "run", 8, ranks, edges))))


def test_node_that_reports_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_INTEGERS", 20)
    with pytest.raises(LimitExceededError):
        Decoder().apply(report_of())
    monkeypatch.setattr(encoding, "MAX_DESCRIPTIONS", 2)
    with pytest.raises(LimitExceededError):
        Decoder().apply(report_of())


def test_details_are_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank has some process groups, not all that the node describes."""
    monkeypatch.setattr(encoding, "MAX_INTEGERS", 1500)
    report = report_of() | LATER | {
        "heads": [[0, 8, 1, 0, 0, "", ""]], "groups": [[f"{number:x}", "", 8] for number in range(100)], "works": [],
        "links": [], "ranks": rows(*GOOD_ROW), "edges": b"",
    }  # fmt: skip
    decoder = Decoder()
    for _ in range(100):  # the same ones again take no more room
        decoder.apply(report | {"full": False, "heads": [], "groups": [], "details": b""} if decoder.num_integers else
                      report | {"details": rows(0, 1, *range(9))})  # fmt: skip
    with pytest.raises(LimitExceededError):
        decoder.apply(report | {"details": rows(*(n for group in range(100) for n in (0, group, *range(9))))})


def test_states_are_not_free() -> None:
    """Each takes what its workers take; a rank that leaves gives it back."""
    report = {**report_of(), **LATER, "details": b"", "edges": b"", "ranks": rows(*GOOD_ROW)}
    decoder = Decoder()
    decoder.apply(report)
    (rank,) = decoder.rank_rows.rows()
    before = decoder.num_integers
    workers = [[1, "a", "S", "c", 0]] * 64
    for _ in range(2):
        decoder.apply({"clock": 1, "states": [[rank, *NO_STATE[:-1], workers]]})
        assert before + len(NO_STATE) + 5 * 64 < decoder.num_integers < before + 16 * 64
    decoder.apply({"clock": 2, "gone": [rank]})
    assert decoder.num_integers == before - GOOD_ROW[0]
