"""The analyzer on what the transport has moved while a job stands still, and on many hangs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from job.tests.support.analyzed import SECONDS, everything, last, only, told
from job.tests.support.observations import WORLD, edge, member, observed, rank
from job.tests.support.observed_jobs import hung
from tensorwire_job.analyzer import Analyzer

if TYPE_CHECKING:
    from tensorwire_job.model import ProcessGroup


def test_bytes_that_the_transport_counts_tell_too() -> None:
    def moving(number: int, age: float) -> list[ProcessGroup]:
        return [member(31, waits=age, sent_bytes=int(1e8 * age), received_bytes=0)]

    def at_rest(number: int, age: float) -> list[ProcessGroup]:
        return [member(31, waits=age, sent_bytes=0 if number == 2 else 4096, received_bytes=4096)]

    assert {notice.level for notice in everything(hung(moving), 60)} == {"notice"}
    assert told(last(hung(at_rest))) == ("TW-H3", [2])


def test_bytes_of_another_group_are_no_progress_of_this_one() -> None:
    """Nor are those that were moved before the transport counted them."""

    def groups(number: int, age: float) -> list[ProcessGroup]:
        other = member(9, waits=age, group="dp", sent_bytes=int(1e10 * age), received_bytes=0)
        counted = {"sent_bytes": 10**9, "received_bytes": 0} if age > 6.0 else {}
        return [member(31, waits=age, **counted), other]

    for time in (8.0, 10.0):
        assert [(finding.code, finding.process_group) for finding in last(hung(groups), time)] == [("TW-H3", "world")]


def test_evidence_tells_of_growth_only_where_time_has_passed() -> None:
    stuck = [edge(2, 3, send_queue=4096, backoff=3), edge(2, 3, send_queue=1, backoff=4)]
    ranks = [rank(number, member(31, waits=9.0)) for number in range(WORLD)]
    finding = only(Analyzer(SECONDS).update(observed(50.0, ranks, stuck)).findings)
    assert "edge 2 -> 3: 4.0 KiB unacknowledged, timer backed off 4 times" in finding.evidence


def test_of_many_hangs_those_with_most_victims_are_told() -> None:
    def in_group(name: str, size: int, waits: bool) -> ProcessGroup:
        return member(31 if waits else 30, waits=9.0 if waits else None, group=name, size=size)

    groups = [in_group(f"pair {number // 2}", 2, bool(number % 2)) for number in range(80)]
    groups += [in_group("large", 8, number > 80) for number in range(80, 88)]
    ranks = [rank(number, group, world=88) for number, group in enumerate(groups)]
    findings = Analyzer(SECONDS).update(observed(50.0, ranks, world=88)).findings
    assert [finding.suspects for finding in findings[:1]] == [[80]]
    assert len(findings) == 4
