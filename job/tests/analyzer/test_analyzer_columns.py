"""Columns that are read from the rows of reports lead to the same as those that are made of ranks."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from job.tests.analyzer.test_analyzer_properties import edges, rank_states
from job.tests.support.analyzed import SECONDS
from job.tests.support.observations import WORLD, member, observed, rank, ring
from tensorwire.errors import FormatError
from tensorwire_job.analyzer import Analyzer
from tensorwire_job.analyzer.view.groups import Groups
from tensorwire_job.columns import EdgeColumns, RankColumns
from tensorwire_job.model import MAX_RANKS, MAX_SUSPECTS, Timing, Worker
from tensorwire_job.protocol.encoding import Encoder
from tensorwire_job.service.merge import Nodes
from tests.support.drawn import drawn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorwire_job.model import Observation


@st.composite
def full_ranks(draw: st.DrawFn) -> list[Any]:
    """Ranks of which all is known that columns hold, as far as it is known of any."""
    ages = st.sampled_from([None, 0.5, 3.0, 12.0])
    ranks = draw(rank_states())
    for one in ranks:
        process = one.process
        process.cpu_seconds, process.wait_seconds = draw(st.sampled_from([(0.0, 0.0), (7.0, 1.0), (9.5, 4.0)]))
        process.throttled_seconds = draw(st.sampled_from([0.0, 0.0, 2.5]))
        process.read_bytes, process.written_bytes = draw(st.sampled_from([(-1, -1), (0, 0), (5 << 20, 9 << 20)]))
        process.signal = draw(st.sampled_from(["", "", "", "SIGINT"]))
        process.signal_seconds = draw(ages) if process.signal else None
        process.workers = draw(st.sampled_from([[], [], [Worker(900 + one.rank, "loader", "S", "pipe_read", 1.5)]]))
        one.setup = draw(st.sampled_from(["", "initialized", "initialized", "before init", "in init"]))
        one.setup_seconds = draw(ages) if one.setup else None
        one.activity = draw(st.sampled_from(["", "", "torch.save", "DataLoader", "new_group"]))
        one.activity_seconds = draw(ages) if one.activity else None
        for group in one.process_groups:
            group.baseline_rate = draw(st.sampled_from([None, 12.5]))
            group.sent_bytes, group.received_bytes = draw(st.sampled_from([(-1, -1), (300, 200), (400, 0)]))
            group.timing = draw(st.sampled_from([None, None, Timing(20, 5, 0.5, 0.0625, 0.25, 4096, 1)]))
    return ranks


jobs = st.lists(st.tuples(full_ranks(), edges), min_size=2, max_size=6)


def through_reports(states: list[Any]) -> Iterator[Observation]:
    """What the analyzer of two nodes sees."""
    nodes = Nodes("run")
    encoders = {name: Encoder() for name in ("even", "odd")}
    for name in encoders:
        nodes.join(name, 0.0)
    for index, (ranks, connections) in enumerate(states):
        seen = observed(50.0 + 2 * index, ranks, connections)
        for part, (name, encoder) in enumerate(encoders.items()):
            own = {number: replace(rank, node=name) for number, rank in seen.ranks.items() if number % 2 == part}
            of_own = [edge for edge in seen.edges if edge.rank in own]
            report = encoder.report(replace(seen, ranks=own, edges=of_own))
            nodes.report(name, report, seen.time)
        yield nodes.observe(seen.time)


def as_objects(observation: Observation) -> Observation:
    return replace(observation, ranks=dict(observation.ranks), edges=list(observation.edges))


@drawn(25, 60)
@given(jobs, st.integers(0, 15))
def test_findings_and_columns_are_the_same(states: list[Any], kept: int) -> None:
    of_columns, of_objects = Analyzer(SECONDS), Analyzer(SECONDS)
    for observation in through_reports(states):
        assert of_columns.update(observation) == of_objects.update(as_objects(observation))
        columns, expected = observation.ranks, RankColumns.of(dict(observation.ranks))
        assert isinstance(columns, RankColumns)
        same(columns, expected)
        in_view = np.array([bool(kept >> number & 1) for number in columns])
        same(columns.only(in_view), expected.only(in_view))
        ends, others = EdgeColumns.of(observation.edges).ends, EdgeColumns.of(list(observation.edges)).ends
        for each in fields(ends):
            np.testing.assert_array_equal(getattr(ends, each.name), getattr(others, each.name), each.name)


def same(columns: RankColumns, expected: RankColumns) -> None:
    assert list(columns.items()) == list(expected.items())
    for part, other in ((columns.places, expected.places), (columns.rows, expected.rows)):
        for each in fields(part):
            if each.name not in ("nodes", "groups", "origin"):
                np.testing.assert_array_equal(getattr(part, each.name), getattr(other, each.name), each.name)
    for name in ("exit_reasons", "phases", "signals"):
        assert getattr(columns, name) == getattr(expected, name), name
    for left, right in zip(columns.transferred + columns.setups, expected.transferred + expected.setups, strict=True):
        np.testing.assert_array_equal(left, right)
    for name in ("with_workers", "activities"):
        assert sorted(getattr(columns, name)) == sorted(getattr(expected, name)), name
    nodes = [columns.node_names[node] for node in columns.places.nodes]
    assert nodes == [expected.node_names[node] for node in expected.places.nodes]
    for row in range(len(columns.rows.places)):
        assert columns.group(row) == expected.group(row)
        assert columns.process_group(row) == expected.process_group(row)
    rows = np.arange(len(columns.rows.places))
    assert columns.operations(rows) == expected.operations(rows)
    pairs = set(zip(columns.rows.groups.tolist(), expected.rows.groups.tolist(), strict=True))
    assert len(pairs) == len({left for left, _ in pairs}) == len({right for _, right in pairs})


def test_rank_is_a_member_once() -> None:
    twice = rank(0, member(5), member(6))
    groups = Groups(RankColumns.of({0: twice, 1: rank(1, member(7))}), WORLD)
    (group,) = groups.values()
    assert group.numbers.tolist() == [0, 1]
    assert group.enqueued.tolist() == [6, 7]
    assert group.member(0).enqueued == 6


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_damaged_rows_are_refused_or_analyzed(first: int) -> None:
    for seed in range(first, first + 10):
        rng = random.Random(seed)
        ranks = [rank(n, member(30, waits=6.0), member(3, group="tp", size=2)) for n in range(WORLD)]
        report = Encoder().report(observed(50.0, ranks, ring()))
        for kind in ("ranks", "edges"):
            data = bytearray(report[kind])
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] = rng.choice([0, 1, 0x3F, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            report[kind] = bytes(data)
        nodes = Nodes("run")
        nodes.join("n", 0.0)
        is_refused = False
        try:
            nodes.report("n", report, 1.0)
        except FormatError:
            is_refused = True
        analyzer = Analyzer(SECONDS)
        for now in (1.0, 2.0, 10.0):
            seen = nodes.observe(now)
            assert not (is_refused and (seen.ranks or seen.edges)), "nothing is taken over of a report that is refused"
            assert all(number == one.rank and 0 <= number < MAX_RANKS for number, one in seen.ranks.items())
            assert len(seen.edges) == len(list(seen.edges))
            for finding in analyzer.update(seen).findings:
                assert set(finding.suspects) <= set(seen.ranks) | set(range(seen.world_size)), "ranks of the job"
                assert len(finding.suspects) <= MAX_SUSPECTS
                assert finding.summary
                assert finding.evidence
                json.dumps(asdict(finding), allow_nan=False)  # a journal takes it
