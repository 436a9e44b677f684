"""All nodes of a job become one."""

from __future__ import annotations

import copy
import json
import tracemalloc
from dataclasses import replace

import pytest

from tensorwire.errors import CorruptDataError, LimitExceededError
from tensorwire_job.model import Edge, Observation, Operation, Process, ProcessGroup, Rank, Timing
from tensorwire_job.protocol.decoding import Decoder
from tensorwire_job.protocol.encoding import Encoder
from tensorwire_job.service import merge
from tensorwire_job.service.merge import Nodes

START = 5000.0


def simple(number: int, node: str, *, generation: int = 0, size: int = 4, gone: float | None = None) -> Rank:
    process = Process("running" if gone is None else "lost", "S", gone_seconds=gone)
    return Rank(number, size, node, 100 + number, generation, process, [])


class Reporter:
    """A node that reports; times count from START."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        self.nodes, self.name, self.encoder = nodes, name, Encoder()
        nodes.join(name, START)

    def report(self, now: float, *ranks: Rank, edges: list[Edge] | None = None) -> None:
        seen = Observation(START + now, "run", 4, {rank.rank: rank for rank in ranks}, edges or [])
        self.nodes.report(self.name, self.encoder.report(seen), START + now)


def observe(nodes: Nodes, now: float) -> Observation:
    return nodes.observe(START + now)


def test_nodes_become_one_job() -> None:
    nodes = Nodes("run")
    for name, numbers in (("a", (0, 1)), ("b", (2, 3))):
        Reporter(nodes, name).report(10.0, *(simple(number, name) for number in numbers))
    job = observe(nodes, 10.5)
    assert sorted(job.ranks) == [0, 1, 2, 3]
    assert [job.ranks[number].node for number in range(4)] == ["a", "a", "b", "b"]
    assert (job.world_size, job.run_id, job.silent_nodes) == (4, "run", [])


def test_silent_node_keeps_its_last_entries() -> None:
    nodes = Nodes("run")
    a, b = Reporter(nodes, "a"), Reporter(nodes, "b")
    group = ProcessGroup("c", "pg", 2, 5, 4, 1.0, None, None)
    b.report(0.0, replace(simple(1, "b"), process_groups=[group]))
    for second in range(8):
        a.report(second, simple(0, "a"))
        job = observe(nodes, float(second))
        assert job.silent_nodes == (["b"] if second > 5 else [])
        assert job.ranks[1].process_groups[0].open_seconds == 1.0
    b.report(8.0, simple(1, "b"))
    job = observe(nodes, 8.0)
    assert job.silent_nodes == []


def test_entries_are_replaced_never_written_to() -> None:
    nodes = Nodes("run")
    node = Reporter(nodes, "a")
    group = ProcessGroup("c", "pg", 2, 5, 4, 1.0, None, Operation(5))
    node.report(0.0, replace(simple(0, "a"), process_groups=[group]))
    first = observe(nodes, 0.0)
    kept = copy.deepcopy(first)
    node.report(1.0, replace(simple(0, "a"), process_groups=[replace(group, enqueued=6, open_seconds=2.0)]))
    second = observe(nodes, 1.0)
    assert first == kept
    assert second.ranks[0].process_groups[0].open_seconds == 2.0


def test_node_that_reconnects_starts_again() -> None:
    nodes = Nodes("run")
    Reporter(nodes, "a").report(0.0, simple(0, "a"), simple(1, "a"))
    assert sorted(observe(nodes, 0.0).ranks) == [0, 1]
    again = Reporter(nodes, "a")
    assert sorted(observe(nodes, 1.0).ranks) == [0, 1], "known until the first report is here"
    again.report(2.0, simple(1, "a"))
    job = observe(nodes, 2.0)
    assert sorted(job.ranks) == [1]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_rank_that_moved_is_where_it_lives(order: tuple[int, int]) -> None:
    nodes = Nodes("run")
    ranks = simple(0, "old", gone=5.0), simple(0, "new", generation=1)
    for index in order:
        Reporter(nodes, ranks[index].node).report(0.0, ranks[index])
    assert observe(nodes, 0.0).ranks[0].node == "new"


def connection(rank: int, local: str, remote: str, peer: int = -1) -> Edge:
    return Edge(rank, peer, 1, 2, 0.5, 0, 0, 0, 0, 0.001, local, remote)


def test_connections_between_nodes_are_paired() -> None:
    nodes = Nodes("run")
    a, b = Reporter(nodes, "a"), Reporter(nodes, "b")
    for second in range(3):
        a.report(
            second,
            simple(0, "a"),
            edges=[connection(0, "10.0.0.1:5", "10.0.0.2:6"), connection(0, "10.0.0.1:7", "x:1")],
        )
        b.report(second, simple(1, "b"), edges=[connection(1, "10.0.0.2:6", "10.0.0.1:5")])
        job = observe(nodes, second)
        assert {(e.rank, e.local): e.peer for e in job.edges} == {
            (0, "10.0.0.1:5"): 1, (0, "10.0.0.1:7"): -1, (1, "10.0.0.2:6"): 0,
        }  # fmt: skip
    b.report(3.0, simple(1, "b", gone=1.0))
    a.report(3.0, simple(0, "a"), edges=[connection(0, "10.0.0.1:5", "10.0.0.2:6")])
    assert [e.peer for e in observe(nodes, 3.0).edges] == [1], "who the other end was is not forgotten with it"


def test_loopback_of_two_nodes_is_not_paired() -> None:
    nodes = Nodes("run")
    Reporter(nodes, "a").report(0.0, simple(0, "a"), edges=[connection(0, "1/127.0.0.1:5", "1/127.0.0.1:6")])
    Reporter(nodes, "b").report(0.0, simple(1, "b"), edges=[connection(1, "1/127.0.0.1:6", "1/127.0.0.1:5")])
    assert [e.peer for e in observe(nodes, 0.0).edges] == [-1, -1]


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "MAX_NODES", 2)
    nodes = Nodes("run")
    for name in ("a", "b", "a"):
        nodes.join(name, START)
    with pytest.raises(LimitExceededError):
        nodes.join("c", START)


def test_numbers_of_all_nodes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "MAX_INTEGERS", 60)
    nodes = Nodes("run")
    for _ in range(20):
        Reporter(nodes, "a").report(0.0, simple(0, "a"), simple(1, "a"))
    b = Reporter(nodes, "b")
    b.report(0.0, simple(2, "b"))
    with pytest.raises(LimitExceededError):
        b.report(1.0, simple(2, "b"), simple(3, "b"))


def test_what_is_kept_of_a_node_that_connects_anew_counts_until_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "MAX_INTEGERS", 60)
    nodes = Nodes("run")
    a, b = Reporter(nodes, "a"), Reporter(nodes, "b")
    a.report(0.0, simple(0, "a"), simple(1, "a"))
    observe(nodes, 0.0)
    nodes.join("a", START + 1.0)
    with pytest.raises(LimitExceededError):
        b.report(1.0, simple(2, "b"), simple(3, "b"))
    nodes.join("b", START + 2.0)
    Reporter(nodes, "a").report(2.0, simple(0, "a"))
    observe(nodes, 2.0)
    Reporter(nodes, "b").report(3.0, simple(2, "b"), simple(3, "b"))


def test_report_that_breaks_off_leaves_nothing_behind() -> None:
    """Else an agent with the key could fill the memory with halves of reports, each under another name."""
    nodes = Nodes("run")
    nodes.join("a", START)
    works = [["x" * 256, "y" * 256, number, 0, 0] for number in range(1 << 12)]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError):
            nodes.report("a", {"clock": 1, "full": True, "works": json.loads(json.dumps(works)), "gone": [5]}, START)
        assert tracemalloc.get_traced_memory()[0] < 1 << 18
    finally:
        tracemalloc.stop()
    Reporter(nodes, "a").report(1.0, simple(0, "a"))
    assert list(observe(nodes, 1.0).ranks) == [0]


def test_largest_job_is_taken() -> None:
    """1,048,576 ranks on 8,192 nodes, each rank in four process groups with timings, without connections."""
    timing = Timing(5, 8, 1.5, 0.1, 0.4, 1 << 33, 2)
    groups = [
        ProcessGroup(f"{number:016x}", "dp_tp", 8192, 9, 8, 1.0, 1.0, Operation(9, "all_reduce", "BF16"), timing, 5, 5)
        for number in range(4)
    ]
    members = [range(8), range(0, 1 << 20, 8), (0, 1, 4, 5), range(1 << 20)]
    groups = [replace(group, members=ranks) for group, ranks in zip(groups, members, strict=True)]
    decoder = Decoder()
    ranks = [replace(simple(number, "a", size=1 << 20), process_groups=groups, setup="initialized", setup_seconds=9.0)
             for number in range(128)]  # fmt: skip
    for rank in ranks:
        rank.process.read_bytes = rank.process.written_bytes = 1 << 30
    decoder.apply(Encoder().report(Observation(START, "run", 1 << 20, {rank.rank: rank for rank in ranks})))
    assert decoder.num_integers * 8192 <= merge.MAX_INTEGERS


def test_meshes_of_the_largest_job_are_taken() -> None:
    """2,048 nodes, each of which names eight groups of 8,192 ranks that are not next to one another."""
    nodes = Nodes("run")
    groups = [[f"{number:016x}", "dp_tp", 8192] for number in range(8)]
    members = [[number, number, 4096, 4, 2, 2] for number in range(8)]
    for name in map(str, range(2048)):
        nodes.join(name, START)
        nodes.report(name, {"clock": 1, "full": True, "groups": groups, "members": members}, START)
    observe(nodes, 0.0)


def test_node_not_heard_of_for_long_is_forgotten() -> None:
    nodes = Nodes("run")
    Reporter(nodes, "a").report(0.0, simple(0, "a"))
    observe(nodes, 0.0)
    job = observe(nodes, 4000.0)
    assert (job.ranks, job.silent_nodes, len(nodes)) == ({}, [], 0)
    with pytest.raises(CorruptDataError, match="forgotten"):
        nodes.report("a", Encoder().report(Observation(0.0, "run", 4, {})), START + 4001)
