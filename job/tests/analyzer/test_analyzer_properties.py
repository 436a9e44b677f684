"""Properties of all jobs: names of ranks do not matter, nor how often the same is seen."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from job.tests.support.analyzed import SECONDS
from job.tests.support.observations import WORLD, dead, edge, member, observed, rank, ring
from job.tests.support.observed_jobs import hung, not_entering
from tensorwire_job.analyzer import Analyzer
from tests.support.drawn import drawn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorwire_job.model import Finding, Observation, ProcessGroup, Rank

quick = settings(max_examples=60)


def essence(findings: Iterable[Finding], names: list[int] | None = None) -> list[Any]:
    """What has to be the same: all but the wording, under other names of ranks."""
    new = names or list(range(100))
    return sorted(
        (
            finding.code,
            finding.level,
            finding.time,
            sorted(new[number] for number in finding.suspects),
            sorted(sorted(new[number] for number in side) for side in finding.sides),
            finding.process_group,
            finding.confidence,
            finding.victims,
        )
        for finding in findings
    )


def renamed(observation: Observation, names: list[int]) -> Observation:
    other = copy.deepcopy(observation)
    for one in other.ranks.values():
        one.rank = names[one.rank]
        for group in one.process_groups:
            if group.operation is not None and group.operation.name in ("send", "recv"):
                group.operation.root = names[group.operation.root]
    other.ranks = {one.rank: one for one in sorted(other.ranks.values(), key=lambda one: one.rank)}
    for connection in other.edges:
        connection.rank, connection.peer = names[connection.rank], names[connection.peer]
    return other


@st.composite
def rank_states(draw: st.DrawFn) -> list[Any]:
    """Anything that four ranks in two groups may be in, sense or no sense."""
    ranks = []
    for number in range(WORLD):
        groups: list[ProcessGroup] = []
        for group in ("a", "b"):
            if draw(st.integers(0, 9)) == 0:
                continue
            name = draw(st.sampled_from(["all_reduce", "all_reduce", "broadcast", "send", "recv"]))
            groups.append(
                member(
                    draw(st.integers(29, 32)),
                    waits=draw(st.sampled_from([None, 0.1, 3.0, 9.0, 20.0])),
                    group=group,
                    name=name,
                    numel=draw(st.sampled_from([8, 8, 8, 9])),
                    root=draw(st.integers(0, WORLD - 1)) if name in ("send", "recv") else -1,
                    known=draw(st.integers(0, 5)) > 0,
                )
            )
        process = draw(
            st.sampled_from(
                [{}, {}, {}, {"state": "T"}, {"phase": "evaluation"}, {"overflow": True}, {"heartbeat_seconds": 9.0},
                 {"life": "lost", "gone_seconds": 7.0},
                 {"life": "exited", "exit_reason": "exit 0", "gone_seconds": 5.0}]
            )
        )  # fmt: skip
        ranks.append(rank(number, *groups, **process))
    return [one for one in ranks if draw(st.integers(0, 12)) > 0]


edges = st.lists(
    st.builds(
        edge,
        st.integers(0, WORLD - 1),
        st.integers(-1, WORLD - 1),
        backoff=st.sampled_from([0, 0, 3]),
        send_queue=st.sampled_from([0, 900]),
        receive_queue=st.sampled_from([0, 0, 50]),
        acked_bytes=st.integers(0, 10**9),
        busy_seconds=st.floats(0, 50),
    ),
    max_size=8,
)


def found_under_both(observation: Observation, names: list[int]) -> tuple[list[Any], list[Any]]:
    """What is found under the ranks' own names and said under the new ones; and what is found under the new ones."""
    for one in observation.ranks.values():
        one.node = "node0"
    found = Analyzer(SECONDS).update(observation).findings
    again = Analyzer(SECONDS).update(renamed(observation, names)).findings
    return essence(found, names), essence(again)


@quick
@given(rank_states(), edges, st.permutations(range(WORLD)))
def test_names_of_ranks_do_not_matter(ranks: list[Any], connections: list[Any], names: list[int]) -> None:
    connections = [connection for connection in connections if connection.peer >= 0]
    found, again = found_under_both(observed(50.0, ranks, connections), names)
    assert found == again


def test_names_of_ranks_do_not_matter_where_messages_cross() -> None:
    """Every job of four ranks that each receive from one of them or are in a collective: many a circle is among them,
    and often one that can be gone round in more than one way."""
    names = [3, 2, 1, 0]
    renamed_peer = {-1: -1} | dict(enumerate(names))
    found: dict[tuple[int, ...], list[Finding]] = {}  # by the peers: all jobs under other names are among them too
    for peers in itertools.product([*range(WORLD), -1], repeat=WORLD):
        called = [{"name": "all_reduce"} if peer < 0 else {"name": "recv", "root": peer} for peer in peers]
        ranks = [rank(number, member(31, waits=9.0, **call)) for number, call in enumerate(called)]
        found[peers] = Analyzer(SECONDS).update(observed(50.0, ranks)).findings
    for peers, told in found.items():
        assert essence(told, names) == essence(found[tuple(renamed_peer[peers[name]] for name in names)]), peers
    assert sum(any(finding.code == "TW-H2" for finding in told) for told in found.values()) > 100


def of_two_roots(root: int) -> ProcessGroup:
    group = member(31, waits=9.0, name="broadcast", numel=8, root=root)
    assert group.operation is not None
    group.operation.signature = 0  # which knows roots
    return group


def all_of(*groups: ProcessGroup) -> list[Rank]:
    return [rank(number, group) for number, group in enumerate(groups)]


LOST = {"life": "lost", "gone_seconds": 7.0}
TIES = {
    "two circles": all_of(*(member(31, waits=9.0, name="recv", root=peer) for peer in (1, 0, 3, 2))),
    "a circle that another rank and a collective wait for": all_of(
        *(member(31, waits=9.0, name="recv", root=peer) for peer in (1, 0, 0)), member(31, waits=9.0)
    ),
    "a collective and a message lack the same": all_of(
        member(29), member(29, waits=9.0, name="send", root=2), member(29), member(30, waits=9.0, known=False)
    ),
    "one of two roots": all_of(*map(of_two_roots, (0, 1, -1, -1))),
    "a rank is gone from two groups, in one of which another has made another call": [
        rank(0, member(29, name="broadcast", group="a")),
        rank(2, member(29, known=False, group="b")),
        rank(3, *(member(29, waits=20.0, group=each) for each in "ab"), **dead(7.0)),
    ],
    "two died in operations that follow one another": [
        rank(1, member(30, waits=9.0, known=False), **LOST),
        rank(2, member(31, waits=9.0, known=False), **LOST),
        rank(3, member(29)),
    ],
    "two died in two process groups": [
        rank(1, member(31, waits=9.0, group="a"), **LOST),
        rank(2, member(31, waits=9.0, group="b"), **LOST),
        rank(3, member(29)),
    ],
    "one ended without a word and one failed, after a third": [
        rank(0, **dead(3.0)),
        rank(1, **dead(3.0, "ValueError: x")),
        rank(2, member(29, waits=20.0, known=False), **dead(7.0)),
        rank(3, member(29)),
    ],
    "two wait for a third, and one of them has an old page": [
        rank(0, member(29, waits=20.0, name="send", root=3), **dead(3.0)),
        rank(1, member(29, waits=20.0, name="send", root=3), heartbeat_seconds=9.0, **dead(3.0)),
        rank(2, member(29)),
        rank(3),
    ],
}


@pytest.mark.parametrize("ranks", TIES.values(), ids=TIES)
def test_names_of_ranks_do_not_decide_ties(ranks: list[Rank]) -> None:
    for names in itertools.permutations(range(WORLD)):
        found, again = found_under_both(observed(50.0, ranks), list(names))
        assert found, names
        assert found == again, names


@drawn(20, 60)
@given(st.lists(st.tuples(rank_states(), edges), min_size=2, max_size=6), st.lists(st.integers(0, 2), min_size=6))
def test_seeing_the_same_again_changes_nothing(states: list[Any], copies: list[int]) -> None:
    once, often = Analyzer(SECONDS), Analyzer(SECONDS)
    for time, ((ranks, connections), more) in enumerate(zip(states, copies, strict=False)):
        observation = observed(50.0 + 2 * time, ranks, connections)
        found = once.update(copy.deepcopy(observation))
        for _ in range(more + 1):
            again = often.update(copy.deepcopy(observation))
            assert essence(again.findings) == essence(found.findings)
        assert (again.time_from, again.stacks_of) == (found.time_from, found.stacks_of)


def test_phase_lasts_though_nothing_of_its_rank_changes() -> None:
    """A rank that ends one has the time of the hang gate from then on, not from when the phase began."""
    in_phase, others = rank(2, member(30), phase="evaluation"), [rank(n, member(31, waits=6.0)) for n in (0, 1, 3)]
    analyzer = Analyzer(SECONDS)
    for time in (50.0, 54.0, 58.0):
        observation = observed(time, [*others, in_phase])
        (notice,) = analyzer.update(observation).findings
        assert (notice.level, notice.suspects) == ("notice", [2])
    after = observed(60.0, [*others, rank(2, member(30))])
    assert [finding.level for finding in analyzer.update(after).findings] == ["notice"]


@quick
@given(rank_states(), edges)
def test_whatever_is_seen_findings_are_well_formed(ranks: list[Any], connections: list[Any]) -> None:
    for finding in Analyzer(SECONDS).update(observed(50.0, ranks, connections)).findings:
        assert finding.confidence in ("high", "medium", "low")
        assert finding.summary
        assert finding.evidence
        assert len(finding.suspects) <= 5
        assert finding.suspects or finding.code in ("TW-H2", "TW-H3", "TW-UNKNOWN", "TW-S2")
        assert finding.victims >= 0


def test_findings_are_the_callers_own() -> None:
    at = hung(not_entering(1))
    analyzer = Analyzer(SECONDS)
    (mine,) = analyzer.update(at(20.0)).findings
    kept = dataclasses.asdict(mine)
    mine.suspects.clear()
    mine.evidence.clear()
    (again,) = analyzer.update(at(20.0)).findings
    assert dataclasses.asdict(again) == kept


def test_memory_does_not_grow_with_time() -> None:
    """New process groups come and go, as they do in long jobs."""
    import tracemalloc

    analyzer = Analyzer(SECONDS)

    def run(start: int, seconds: int) -> int:
        for time in range(start, start + seconds, 2):
            ranks = [rank(n, member(10 * time), member(3, group=f"g{time // 5}")) for n in range(WORLD)]
            analyzer.update(observed(float(time), ranks, ring(acked_bytes=lambda a, b, t=time: 1000 * t)))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(0, 300)
        assert run(300, 600) < before + 50_000
    finally:
        tracemalloc.stop()
