"""The analyzer on slow jobs: the gate, P, and everything that is legal though it takes time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from job.tests.support.analyzed import SECONDS, everything, last, only, told, watch
from job.tests.support.observations import WORLD, edge, member, observed, rank, ring
from job.tests.support.observed_jobs import every_rank, healthy, job_at_rate
from tensorwire_job.analyzer.slowness.throughput import Rounds, Throughput, merge
from tensorwire_job.analyzer.view.groups import Groups
from tensorwire_job.columns import RankColumns
from tensorwire_job.model import Observation, ProcessGroup, Timing

always = pytest.mark.parametrize("timed_after", [0.0, 35.0], ids=["always-timed", "timed-late"])


def busy(culprit: int, after: float = 20.0) -> Any:
    """Edges of a ring of which one, out of the culprit, is busy most of the time once transfers are slow."""

    def at(time: float) -> list[Any]:
        def share(a: int, b: int) -> float:
            return 0.89 if (a, b) == (culprit, (culprit + 1) % WORLD) else 0.3

        slow = max(0.0, time - after)
        return ring(
            busy_seconds=lambda a, b: 0.05 * min(time, after) + share(a, b) * slow,
            acked_bytes=lambda a, b: int(1e6 * time),
        )

    return at


@every_rank
@always
def test_a_late_rank(culprit: int, timed_after: float) -> None:
    finding = only(last(job_at_rate({culprit: 0.5}, timed_after=timed_after), 60))
    assert (finding.code, finding.suspects) == ("TW-S1", [culprit])
    assert any("P = 1.0" in fact for fact in finding.evidence)
    assert finding.victims == 3


def test_a_hang_gate_below_the_slow_one_leaves_the_slow_gate_its_window() -> None:
    thresholds = dataclasses.replace(SECONDS, hang_seconds=0.5 * SECONDS.slow_seconds)
    assert told(last(job_at_rate({2: 0.5}, timed_after=0.0), 60, step=0.25, thresholds=thresholds)) == ("TW-S1", [2])


@every_rank
@always
def test_a_slow_transfer(culprit: int, timed_after: float) -> None:
    finding = only(last(job_at_rate(transfer=0.5, timed_after=timed_after, edges=busy(culprit)), 60))
    assert (finding.code, finding.suspects) == ("TW-S2", [culprit])
    assert any("busy 89 % of the time" in fact for fact in finding.evidence)


@every_rank
@always
def test_both_on_one_rank(culprit: int, timed_after: float) -> None:
    at = job_at_rate({culprit: 0.5}, 0.5, timed_after=timed_after, edges=busy(culprit))
    assert told(last(at, 60)) == ("TW-S3", [culprit])


@pytest.mark.parametrize(
    ("threshold", "code"),
    [({"compute_share": 0.4}, "TW-S1"), ({"transfer_share": 0.6}, "TW-S2"), ({"slow_factor": 100.0}, None)],
    ids=["compute_share", "transfer_share", "slow_factor"],
)
def test_thresholds_decide_what_half_and_half_counts_as(threshold: dict[str, float], code: str | None) -> None:
    """Half of the lost time is late arrival, half is transfer; the longest T is 51 times as long as before."""
    at = job_at_rate({2: 0.5}, 0.5, timed_after=0.0, edges=busy(2))
    found = last(at, 60, thresholds=dataclasses.replace(SECONDS, **threshold))
    assert [finding.code for finding in found] == ([code] if code else [])


@every_rank
def test_both_on_two_ranks(culprit: int) -> None:
    at = job_at_rate({culprit: 0.5}, 0.5, timed_after=0.0, edges=busy((culprit + 2) % WORLD))
    finding = only(last(at, 60))
    assert (finding.code, sorted(finding.suspects)) == ("TW-S3", sorted([culprit, (culprit + 2) % WORLD]))


@every_rank
def test_what_is_lost_on_the_way_to_a_late_rank_accuses_no_sender(culprit: int) -> None:
    """It has no room for what it does not read. Some is lost elsewhere as well, as on a busy machine."""

    def edges(time: float) -> list[Any]:
        return ring(
            busy_seconds=lambda a, b: 0.3 * time,
            retransmits=lambda a, b: int((2.0 if b == culprit else 0.9) * max(0.0, time - 20)),
        )

    assert told(last(job_at_rate({culprit: 0.5}, 0.5, timed_after=0.0, edges=edges), 60)) == ("TW-S3", [culprit])


def test_an_edge_that_is_idle_most_of_the_time_is_not_waited_for_though_it_loses_packets() -> None:
    def edges(time: float) -> list[Any]:
        return ring(
            busy_seconds=lambda a, b: 0.1 * time,
            retransmits=lambda a, b: int(30 * max(0.0, time - 20)) if a == 1 else 0,
        )

    assert told(last(job_at_rate(transfer=0.5, timed_after=0.0, edges=edges), 60)) == ("TW-S2", [])


@every_rank
def test_packet_loss_shows_in_retransmissions(culprit: int) -> None:
    def edges(time: float) -> list[Any]:
        return ring(
            busy_seconds=lambda a, b: 0.4 * time,
            retransmits=lambda a, b: int(30 * max(0.0, time - 20)) if a == culprit else 0,
        )

    assert told(last(job_at_rate(transfer=0.5, timed_after=0.0, edges=edges), 60)) == ("TW-S2", [culprit])


@every_rank
@pytest.mark.parametrize(
    ("counter", "its", "theirs", "fact"),
    [
        ("throttled_seconds", 0.8, 0.0, "throttled by its CPU quota for 80 %"),
        ("wait_seconds", 0.8, 0.1, "CPU for 80 % of the time: others had it; it used 0.20 CPUs, the median rank 0.05"),
    ],
)
def test_a_quota_or_starvation_decides_where_p_reads_mixed(
    culprit: int, counter: str, its: float, theirs: float, fact: str
) -> None:
    def states(number: int, time: float) -> dict[str, Any]:
        busy = {"cpu_seconds": (0.2 if number == culprit else 0.05) * time}
        return busy | {counter: (its if number == culprit else theirs) * max(0.0, time - 20)}

    finding = only(last(job_at_rate({culprit: 0.3}, 0.3, timed_after=0.0, states=states), 60))
    assert (finding.code, finding.suspects) == ("TW-S1", [culprit])
    assert any(fact in each for each in finding.evidence)


@pytest.mark.parametrize(
    ("counter", "of_rank_2", "of_others"), [("wait_seconds", 0.9, 0.1), ("throttled_seconds", 0.8, 0.8)]
)
def test_what_a_rank_that_is_not_late_or_all_alike_wait_decides_nothing(
    counter: str, of_rank_2: float, of_others: float
) -> None:
    def states(number: int, time: float) -> dict[str, Any]:
        return {counter: (of_rank_2 if number == 2 else of_others) * time}

    assert told(last(job_at_rate({1: 0.5}, timed_after=0.0, states=states), 60)) == ("TW-S1", [1])
    assert only(last(job_at_rate({}, 0.5, timed_after=0.0, states=states), 60)).code == "TW-S2"


@every_rank
def test_pairwise_waits_where_p_means_nothing(culprit: int) -> None:
    finding = only(last(job_at_rate({culprit: 0.5}, timed_after=0.0, rooted=True), 60))
    assert (finding.code, finding.suspects) == ("TW-S1", [culprit])
    assert any("P means nothing" in fact for fact in finding.evidence)
    assert finding.confidence == "medium"


@every_rank
@pytest.mark.parametrize("partial", [False, True], ids=["full", "partial"])
def test_an_all_to_all_to_which_a_rank_comes_late(culprit: int, partial: bool) -> None:
    """P holds where every rank exchanges something with every other."""
    at = job_at_rate({culprit: 0.5}, timed_after=0.0, rooted=partial, name="all_to_all_single")
    finding = only(last(at, 60))
    assert (finding.code, finding.suspects) == ("TW-S1", [culprit])
    assert any(("P means nothing" if partial else "P = 1.0") in fact for fact in finding.evidence)
    assert finding.confidence == ("medium" if partial else "high")


@every_rank
@pytest.mark.parametrize("partial", [False, True], ids=["full", "partial"])
def test_an_all_to_all_that_transfers_slowly(culprit: int, partial: bool) -> None:
    at = job_at_rate(transfer=0.5, timed_after=0.0, edges=busy(culprit), rooted=partial, name="all_to_all_single")
    finding = only(last(at, 60))
    assert (finding.code, finding.suspects) == ("TW-S2", [culprit])
    assert any("busy 89 % of the time" in fact for fact in finding.evidence)


def test_low_throughput_asks_for_times_once_and_long_enough_ahead() -> None:
    asked = [(time, each.time_from) for time, each in watch(job_at_rate({1: 0.5}), 40) if each.time_from]
    assert asked[0][0] > 20
    assert len({tuple(sorted(timing.items())) for _, timing in asked}) == 1
    time, timing = asked[0]
    done = job_at_rate({1: 0.5})(time).ranks[0].process_groups[0].enqueued
    assert timing["world"] > done + 3


def test_times_that_were_asked_for_are_asked_for_no_more() -> None:
    for time, analysis in watch(job_at_rate({1: 0.5}, timed_after=35.0), 60):
        if analysis.findings:
            assert not analysis.time_from, time


def test_without_completion_times_it_is_unknown_and_says_what_is_missing() -> None:
    findings = everything(job_at_rate({1: 0.5}), 60)
    assert {finding.code for finding in findings} == {"TW-UNKNOWN"}
    assert "no completion times" in findings[0].summary
    assert findings[0].confidence == "low"


def test_the_ranks_own_baseline_serves_an_analyzer_that_comes_late() -> None:
    def at(time: float) -> Observation:
        observation = job_at_rate({2: 0.5}, after=0.0, timed_after=15.0)(time)
        for one in observation.ranks.values():
            one.process_groups[0].baseline_rate = 10.0
        return observation

    assert told(last(at, 60)) == ("TW-S1", [2])


def test_a_finding_stands_and_then_goes() -> None:
    slow = job_at_rate({2: 0.5}, timed_after=0.0)

    def at(time: float) -> Observation:
        if time <= 60:
            return slow(time)
        done = slow(60).ranks[0].process_groups[0].enqueued + int(10 * (time - 60))
        return observed(time, [rank(n, member(done)) for n in range(WORLD)])

    seen = [(time, analysis.findings) for time, analysis in watch(at, 90)]
    first = next(time for time, findings in seen if findings)
    end = max(time for time, findings in seen if findings)
    assert 20 < first < 20 + 3 * SECONDS.slow_seconds
    assert 60 < end < 60 + 2 * SECONDS.slow_seconds
    assert all(len(findings) == (first <= time <= end) for time, findings in seen)
    assert {(f.time, f.code, *f.suspects) for _, findings in seen for f in findings} == {(first, "TW-S1", 2)}


def two_tensor_groups(culprit: int) -> Any:
    """Ranks 0 1 | 2 3 reduce in pairs, then all four together; a late rank makes its partner wait in their pair, and
    the other pair in the large group."""

    def at(time: float) -> Observation:
        slow = time > 20
        done = int(10 * min(time, 20) + max(0.0, time - 20) / 0.6) + 1
        good = 200
        bad = max(0, done - 201)

        def timing(good_t: float, slow_t: float) -> Any:
            total = good * good_t + bad * slow_t if slow else (done - 1) * good_t
            return Timing(1, max(1, done - 1), total, 0.9 * good_t, 1.1 * (slow_t if slow else good_t), 1, 0)

        ranks = []
        for n in range(8):
            pair, its_pair = n // 4, culprit // 4
            in_pair = 0.52 if pair == its_pair and n != culprit else 0.02
            in_world = 0.02 if pair == its_pair else 0.52
            ranks.append(
                rank(
                    n,
                    member(done, group=f"tp{pair}", size=4, timing=timing(0.02, in_pair)),
                    member(done, group="dp", size=8, timing=timing(0.02, in_world)),
                    world=8,
                )
            )
        return observed(time, ranks, world=8)

    return at


@pytest.mark.parametrize("culprit", [0, *(pytest.param(culprit, marks=pytest.mark.slow) for culprit in range(1, 7)), 7])
def test_who_is_late_because_it_waits_elsewhere_is_not_to_blame(culprit: int) -> None:
    assert told(last(two_tensor_groups(culprit), 60)) == ("TW-S1", [culprit])


@every_rank
def test_a_pipeline_of_receives_waits_for_who_waits_for_nobody(culprit: int) -> None:
    """Each stage receives from the one before it; nothing but sends and receives is slow, and counts differ."""

    def at(time: float) -> Observation:
        done = int(10 * min(time, 20) + max(0.0, time - 20) / 0.6)
        bad = max(0, done - 200)
        ranks = []
        for n in range(WORLD):
            slow_t = 0.02 if n == culprit else 0.52
            timing = Timing(1, done, (done - bad) * 0.02 + bad * slow_t, 0.01, 0.6, 1, done) if done else None
            group = member(done, name="recv", root=(n - 1) % WORLD, timing=timing)
            ranks.append(rank(n, group))
        return observed(time, ranks)

    assert told(last(at, 60)) == ("TW-S1", [culprit])


def test_a_wait_in_one_operation_of_each_step_is_counted_though_one_long_round_is_not() -> None:
    throughput, late, num_windows = Throughput(SECONDS), 2, 6
    for index in range(num_windows + 1):
        ranks = {}
        for number in range(WORLD):
            longest = 0.01 if number == late else 1.0
            timing = Timing(1 + 21 * index, 21, 20 * 0.01 + longest, 0.01, longest, 0, 0)
            completed = 21 * (index + 1)
            group = ProcessGroup("g", "group", WORLD, completed, completed, None, 0.0, None, timing)
            ranks[number] = rank(number, group)
        throughput.add(float(index), completed, None, Groups(RankColumns.of(ranks), WORLD)["g"])
    rounds = throughput.rounds(since=0.0)
    assert rounds is not None
    assert rounds.mean[late] == pytest.approx(0.01)
    assert rounds.mean[0] == pytest.approx((num_windows * 1.2 - 1.0) / (num_windows * 21 - 1))


def test_windows_are_merged_of_the_members_in_each() -> None:
    def window(*numbers: int) -> Rounds:
        values = np.array(numbers, dtype=np.float64)
        return Rounds(np.array(numbers), values, 2 * values, 10 * values, 5 * values, values)

    for others in ((0, 1), (4, 5)):
        merged = merge([window(*sorted((other, 2, 3))) for other in others])
        found = [getattr(merged, name).tolist() for name in ("numbers", "counts", "pairwise", "seconds")]
        assert found == [[2, 3], [4.0, 6.0], [8.0, 12.0], [40.0, 60.0]]
        assert (merged.longest.tolist(), merged.least.tolist()) == ([10.0, 15.0], [2.0, 3.0])


class TestLegal:
    """None of these is a finding, timed or not."""

    @pytest.mark.parametrize("timed_after", [None, 0.0])
    def test_two_hundred_rounds_of_mixed_sizes(self, timed_after: float | None) -> None:
        assert not everything(job_at_rate(after=1e9, timed_after=timed_after), 200)

    @pytest.mark.parametrize("timed_after", [0.0, 35.0])
    def test_all_ranks_slow_outside_of_operations(self, timed_after: float) -> None:
        """Another phase of the script: no one waits for another, so no one is to blame."""
        assert not everything(job_at_rate(timed_after=timed_after, scale=6.0), 90)

    def test_uneven_compute_below_the_slow_factor_or_from_the_start(self) -> None:
        assert not everything(job_at_rate({1: 0.02}, timed_after=0.0), 90)
        assert not everything(job_at_rate({1: 0.5}, after=0.0, timed_after=0.0), 90)

    @pytest.mark.parametrize("stall", [3.0, 4.9])
    @pytest.mark.parametrize("timed", [False, True])
    def test_one_slow_step(self, stall: float, timed: bool) -> None:
        def at(time: float) -> Observation:
            done = int(10 * (time if time < 20 else max(20, time - stall))) + 1
            ranks = []
            for n in range(WORLD):
                inside = 20 < time < 20 + stall and n != 1
                waited = stall if n != 1 and time >= 20 + stall else 0.0
                timing = Timing(1, done, done * 0.02 + waited, 0.01, max(0.03, waited), 1, 0) if timed else None
                ranks.append(rank(n, member(done + inside, waits=time - 20 if inside else None, timing=timing)))
            return observed(time, ranks)

        assert not everything(at, 60)

    def test_a_long_checkpoint_on_all_ranks(self) -> None:
        def at(time: float) -> Observation:
            observation = healthy(min(time, 20.0) + max(0.0, time - 60.0))
            observation.time = time
            return observation

        assert not everything(at, 100)

    def test_warm_up(self) -> None:
        """The first steps compile, and are slow; the one that compiles again later is one slow step."""

        def at(time: float) -> Observation:
            done = int(0.5 * min(time, 20) + 10 * max(0.0, time - 20)) + 1
            return observed(time, [rank(n, member(done)) for n in range(WORLD)])

        assert not everything(at, 60)

    def test_packet_loss_under_the_gate(self) -> None:
        def edges(time: float) -> list[Any]:
            return [edge(1, 2, retransmits=int(5 * time)), edge(2, 1)]

        assert not everything(job_at_rate(transfer=0.03, timed_after=0.0, edges=edges), 90)

    @pytest.mark.parametrize("step", [3600, -15])
    def test_a_clock_step(self, step: int) -> None:
        def at(time: float) -> Observation:
            observation = healthy(time)
            observation.time = time + (step if time >= 30 else 0)
            return observation

        assert not everything(at, 60)

    def test_an_analyzer_that_was_away_or_starts_anew(self) -> None:
        for _, analysis in watch(lambda time: healthy(7.0 * time, rate=3.0), 10):
            assert not analysis.findings

    def test_counts_that_make_no_sense(self) -> None:
        def at(time: float) -> Observation:
            ranks = [rank(n, member(int(10 * time) + 1)) for n in range(WORLD)]
            if int(time) % 5 == 2:
                del ranks[int(time) % 4]
            if int(time) % 7 == 3:
                ranks[0].process_groups[0].completed = ranks[0].process_groups[0].enqueued = 0
            return observed(time, ranks)

        assert not everything(at, 60)


@every_rank
def test_ranks_that_wait_alike_may_wait_for_one_without_times(culprit: int) -> None:
    at = job_at_rate({culprit: 0.5}, timed_after=25.0)

    def without(time: float) -> Observation:
        seen = at(time)
        seen.ranks[culprit].process_groups[0].timing = None
        return seen

    found = {(finding.code, *finding.suspects, finding.confidence) for finding in everything(without, 60.0)}
    assert found == {("TW-S1", culprit, "low")}


def test_one_page_with_a_number_that_makes_no_sense_hides_no_slow_rank() -> None:
    at = job_at_rate({2: 0.5}, timed_after=0.0)

    def damaged(time: float) -> Observation:
        seen = at(time)
        if (timing := seen.ranks[0].process_groups[0].timing) is not None:
            timing.first_sequence = 2**63 - 1
        return seen

    assert told(last(damaged, 60)) == ("TW-S1", [2])


def test_no_rank_is_measured_where_none_is_in_view_all_the_time() -> None:
    at = job_at_rate({2: 0.5}, timed_after=0.0)

    def in_turn(time: float) -> Observation:
        seen = at(time)
        for number in (0, 1) if int(time) % 4 < 2 else (2, 3):
            del seen.ranks[number]
        return seen

    assert {finding.code for finding in everything(in_turn, 60)} <= {"TW-UNKNOWN"}
