"""A few faults in real jobs of four ranks on gloo; `make faults` injects all of them, many times."""

from __future__ import annotations

import signal
import time
from contextlib import closing

import pytest

pytest.importorskip("torch")

from tensorwire.diagnosis.service.service import LocalJob
from tests.system.faults.cases import BY_NAME, FaultContext
from tests.system.faults.fork_server import ForkServer
from tests.system.faults.judge import complaint, is_expected
from tests.system.faults.run import Stage
from tests.system.faults.training_job import TrainingJob
from tests.system.faults.watch import THRESHOLDS, LocalWatch

pytestmark = pytest.mark.xdist_group("live faults")  # one job at a time

# The slow one makes the others wait a hundred times as long as in good times.
FAULTS = [
    ("s1-sleep", 2),
    ("h1-sleep", 1),
    ("h1-gil", 3),
    ("h2-operation", 2),
    ("h2-order", 0),
    ("h2-size", 1),
    ("h3-sigstop", 2),
    ("lost-exception", 3),
]


@pytest.fixture(scope="module")
def stage():
    with Stage() as stage:
        yield stage


@pytest.mark.parametrize(("name", "rank"), FAULTS)
def test_the_fault_is_named(stage, name, rank):
    outcome = stage.run(BY_NAME[name], rank)
    assert outcome.wrong == ""


def test_who_stopped_inside_is_named_when_the_others_time_out_and_when_it_is_killed():
    """By who looked on, and by who comes when all is over."""
    case, rank = BY_NAME["h3-sigstop"], 1
    start = time.monotonic()
    with (
        closing(ForkServer()) as fork_server,
        closing(TrainingJob(fork_server, {}, TW_FAULTS_TIMEOUT="8")) as job,
        closing(LocalWatch(job.nodes[0], case.thresholds)) as watch,
    ):
        job.wait_for_round(3)
        context = FaultContext(job, rank, watch)
        case.inject(context)
        assert watch.wait(8, bool)
        await_end(job, context.others)
        watch.wait(THRESHOLDS.lost_seconds + 1)
        assert is_named_at_first_sight(case, rank, job)
        job.signal(rank, signal.SIGKILL)
        await_end(job, [rank])
        watch.wait(THRESHOLDS.lost_seconds + 1)
        assert is_named_at_first_sight(case, rank, job)
        assert complaint(case, rank, watch.since(start), start) == ""
        assert "Timed out" in "".join(job.output(other).read_text() for other in context.others)


def await_end(job, ranks):
    deadline = time.monotonic() + 30
    while any(job.status(rank) is None for rank in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_named_at_first_sight(case, rank, job):
    with closing(LocalJob(job.nodes[0], case.thresholds)) as observer:
        (finding,) = observer.poll()[1]
    return is_expected(case, rank, finding)
