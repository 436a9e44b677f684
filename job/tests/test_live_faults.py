"""A few faults in real jobs of four ranks on gloo; `make -C job faults` injects all of them, many times.

Slow are faults whose recordings test_replay.py has, and jobs that are judged once they are over, which the tests in
analyzer/test_analyzer_post_mortem.py and test_analyzer_interrupted.py make by hand.
"""

from __future__ import annotations

import signal
import time
from contextlib import closing, suppress

import pytest

pytest.importorskip("torch")

from job.tests.faults.cases import BY_NAME
from job.tests.faults.fork_server import ForkServer
from job.tests.faults.injections import FaultContext
from job.tests.faults.run import Stage
from job.tests.faults.training_job import WORLD, TrainingJob
from job.tests.faults.verdicts import complaint, is_right
from job.tests.faults.watch import THRESHOLDS, LocalWatch
from tensorwire_job.service.service import LocalJob
from tests.support.waiting import wait_for

pytestmark = pytest.mark.xdist_group("live faults")  # one job at a time

# The rank of s1-sleep makes the others wait a hundred times as long as in good times.
FAULTS = [("lost-exception", 3)]
FAULTS_OF_SLOW = [
    ("s1-sleep", 2),
    ("h1-gil", 3),
    ("h2-size", 1),
    ("h1-sleep", 1),
    ("h2-operation", 2),
    ("h2-order", 0),
    ("h3-sigstop", 2),
]


@pytest.fixture(scope="module")
def stage():
    with Stage() as stage:
        yield stage


@pytest.fixture(scope="module")
def fork_server(stage):
    return stage.fork_server_for(BY_NAME["s1-sleep"])


@pytest.mark.parametrize(
    ("name", "rank"), [*FAULTS, *(pytest.param(*fault, marks=pytest.mark.slow) for fault in FAULTS_OF_SLOW)]
)
def test_the_fault_is_named(stage, name, rank):
    """At the second attempt at the latest: a machine that stands still for seconds looks like a job that does."""
    wrong = stage.run(BY_NAME[name], rank).wrong and stage.run(BY_NAME[name], rank).wrong
    assert not wrong


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "hangs", [pytest.param(True, id="hung", marks=pytest.mark.slow), pytest.param(False, id="well")]
)
def test_a_job_that_ctrl_c_ends_is_judged_by_what_its_ranks_had_waited_in(stage, fork_server, hangs):
    """By who comes when all is over. A terminal sends SIGINT to all; the launcher kills those that do not react."""
    rank = 2
    stage.clear()  # its job is over too
    with closing(TrainingJob(fork_server, {})) as job:
        job.wait_for_round(20)
        if hangs:
            job.command([rank], "sleep", seconds=60.0)
            time.sleep(12.0)  # longer than any wait of a job that is well
        for each in WORLD:
            job.signal(each, signal.SIGINT)
        with suppress(AssertionError):
            await_end(job, WORLD, 0.5)
        for each in WORLD:
            with suppress(ProcessLookupError):  # it may end between the look and the signal
                if job.status(each) is None:
                    job.signal(each, signal.SIGKILL)
        await_end(job, WORLD)
        with closing(LocalJob(job.nodes[0], THRESHOLDS)) as observer:
            found = observer.poll()[1]
    assert [(finding.code, finding.suspects) for finding in found] == ([("TW-H1", [rank])] if hangs else [])
    assert all(finding.summary.startswith("when the job was ended (") for finding in found)


def await_end(job, ranks, seconds=30):
    wait_for(lambda: None not in map(job.status, ranks), seconds)


def is_named_at_first_sight(case, rank, job):
    with closing(LocalJob(job.nodes[0], case.thresholds)) as observer:
        (finding,) = observer.poll()[1]
    return is_right(case, rank, finding)
