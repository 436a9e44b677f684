"""The baseline that a rank keeps of itself: by it an analyzer that comes late sees that a job crawls."""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any

import pytest

from tensorwire_job.page import native
from tensorwire_job.page.rank_page import read_page
from tensorwire_job.rank import flight_recorder
from tensorwire_job.rank.flight_recorder import FlightRecorder
from tensorwire_job.rank.process_groups import BackendGroup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tensorwire_job.model import ProcessGroup

HALF_AN_HOUR = 1800


class FakeRank:
    """A rank whose only group completes so many operations a second, on a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = native.create(str(path), "a-run", 0, 4, 0)
        self.group = BackendGroup(7, native.slot(self.handle, 7, b"default_pg", 4), "default_pg", range(4), "0")
        self.recorder = FlightRecorder(self.handle, self, self.dump, self.num_collectives)  # type: ignore[arg-type]
        self.seconds = 1000
        self.completed = 0
        self.wall_seconds = 0  # by which the wall's clock is ahead
        self.is_open = False  # one more operation
        self.unreported = 0  # completions that torch's number lacks: gloo's threads report out of order
        self.created_ns = 0
        self.messages = 0  # before each operation: torch's numbers count them
        self.unseen_messages = 0  # made before the first look
        self.is_calling = False  # a thread makes a message

    def find(self, torch_name: str, description: str, backend: str) -> BackendGroup:
        return self.group

    def name_of(self, entry: dict[str, Any]) -> tuple[str, str]:
        return "0", "default_pg"

    def num_collectives(self, torch_name: str) -> int | None:
        if not self.messages:
            return None
        return -1 if self.is_calling else self.completed + self.is_open + self.unseen_messages

    def number(self, collectives: int) -> int:
        """torch's, of so many collectives."""
        return collectives * (1 + self.messages) + self.unseen_messages if collectives else 0

    def monotonic(self) -> float:
        return float(self.seconds)

    def time_ns(self) -> int:
        return (self.seconds + self.wall_seconds) * 10**9

    def dump(self, with_entries: bool) -> bytes:
        self.created_ns = self.created_ns if self.is_open else self.time_ns()
        enqueued = self.completed + self.is_open
        status = {
            "last_enqueued_collective": self.number(enqueued),
            "last_completed_collective": self.number(self.completed - self.unreported),
        }
        entry = {
            "is_p2p": False,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "profiling_name": "gloo:all_reduce",
            "collective_seq_id": enqueued,
            "retired": not self.is_open,
            "state": "scheduled" if self.is_open else "completed",
            "input_dtypes": ["Float"],
            "input_sizes": [[256]],
            "time_created_ns": self.created_ns,
        }
        return json.dumps({"pg_status": {"0": status}, "entries": [entry] if with_entries else []}).encode()

    def work(self, seconds: int, *, rate: int) -> None:
        for _ in range(seconds):
            self.seconds += 1
            self.completed += rate
            self.recorder.poll()

    @property
    def baseline(self) -> float | None:
        return self.seen.baseline_rate

    @property
    def seen(self) -> ProcessGroup:
        page = read_page(self.path)
        assert page is not None
        (group,) = page.process_groups(native.now() / 1e9)
        return group


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRank]:
    fake = FakeRank(tmp_path / "rank-0-0.page")
    monkeypatch.setattr(flight_recorder, "time", fake)
    yield fake
    native.close(fake.handle)


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_clock_that_is_set_ages_no_operation(rank: FakeRank, step: int) -> None:
    """An operation that is open meanwhile would hang at once."""
    rank.work(10, rate=1)
    rank.is_open = True
    rank.recorder.poll()
    rank.wall_seconds += step
    rank.seconds += 2
    rank.recorder.poll()
    group = rank.seen
    assert group.operation is not None
    assert group.operation.name == "all_reduce"
    assert group.open_seconds is not None
    assert group.open_seconds < 600


def test_a_recount_keeps_what_the_ring_has_told(rank: FakeRank) -> None:
    """The end of timing, while the group stands still: torch's number of completions would stay too low for good."""
    rank.work(10, rate=1)
    rank.is_open, rank.unreported = True, 1
    rank.work(3, rate=0)
    before = rank.seen
    assert (before.enqueued, before.completed) == (11, 10)
    assert before.operation is not None
    rank.recorder.recount()
    after = rank.seen
    assert (after.enqueued, after.completed, after.operation) == (11, 10, before.operation)
    assert after.open_seconds is not None
    assert before.open_seconds is not None
    assert after.open_seconds >= before.open_seconds


def test_what_the_ring_told_during_timing_is_written_after_it(rank: FakeRank) -> None:
    """While operations are timed, the counts are the dispatcher's; it knows of none after the first here."""
    rank.work(10, rate=1)
    native.enter(rank.handle, rank.group.slot, ctypes.byref(native.OperationInfo(sequence=10)))
    rank.is_open, rank.unreported = True, 1
    rank.work(3, rate=0)
    assert (rank.seen.enqueued, rank.seen.completed) == (10, 9)
    native.enable_timing(rank.handle, False, 1)
    rank.recorder.recount()
    assert (rank.seen.enqueued, rank.seen.completed) == (11, 10)


def test_messages_of_a_group_do_not_count(rank: FakeRank) -> None:
    """torch's numbers count them, and those of other ranks may be more."""
    rank.messages = 6
    for _ in range(15):
        rank.work(1, rate=10)
        assert rank.seen.enqueued == rank.seen.completed == rank.completed
    assert rank.baseline == pytest.approx(10)
    rank.is_open = True
    rank.work(1, rate=0)
    assert (rank.seen.enqueued, rank.seen.completed) == (151, 150)


def test_counts_wait_while_a_message_is_made(rank: FakeRank) -> None:
    rank.messages = 6
    rank.work(10, rate=10)
    rank.is_calling = True
    rank.work(1, rate=10)
    assert rank.seen.completed == 100
    rank.is_calling = False
    rank.work(1, rate=10)
    assert rank.seen.completed == 120


def test_messages_before_anybody_looked_are_learnt_from_the_ring(rank: FakeRank) -> None:
    rank.messages, rank.unseen_messages = 6, 3
    rank.work(10, rate=10)
    assert rank.seen.completed == 100


def test_a_baseline_takes_some_seconds(rank: FakeRank) -> None:
    rank.work(5, rate=10)
    assert rank.baseline is None
    rank.work(10, rate=10)
    assert rank.baseline == 10


def test_a_crawl_does_not_become_the_baseline(rank: FakeRank) -> None:
    """Until it has lasted for half an hour: then it is what the group does."""
    rank.work(400, rate=10)
    rank.work(HALF_AN_HOUR - 10, rate=3)
    assert rank.baseline == 10
    rank.work(30, rate=3)
    assert rank.baseline == 3


def test_after_a_short_start_a_lower_throughput_is_the_new_normal_sooner(rank: FakeRank) -> None:
    """Seconds of setting up, in which parameters are broadcast, say little of training."""
    rank.work(21, rate=100)
    rank.work(100, rate=10)
    assert rank.baseline == 100
    rank.work(40, rate=10)
    assert rank.baseline == 10


def test_crawls_that_come_and_go_do_not_add_up(rank: FakeRank) -> None:
    rank.work(400, rate=10)
    for _ in range(20):
        rank.work(200, rate=1)
        rank.work(200, rate=10)
    assert rank.baseline == 10


def test_what_is_not_slow_counts_at_once(rank: FakeRank) -> None:
    """Below slow_factor a lower throughput is legal, and so is any higher one."""
    rank.work(400, rate=10)
    rank.work(230, rate=5)
    assert rank.baseline == 5
    rank.work(100, rate=50)
    assert rank.baseline == 50


def test_times_without_operations_do_not_count(rank: FakeRank) -> None:
    rank.work(60, rate=10)
    rank.work(2 * HALF_AN_HOUR, rate=0)
    rank.work(60, rate=10)
    assert rank.baseline == 10
