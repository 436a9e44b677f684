"""Jobs whose messages are compressed: nothing is found in good times, and the rank at fault is named as without codecs.

There is a job for each way to attach. All of them run at once, since most of the time is waiting.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", "2.13")  # for the backend

from tests.system.faults.cases import WORLD, Case, FaultContext
from tests.system.faults.fork_server import ForkServer
from tests.system.faults.judge import complaint
from tests.system.faults.training_job import TrainingJob
from tests.system.faults.watch import THRESHOLDS, LocalWatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensorwire.diagnosis.model import Finding

pytestmark = pytest.mark.xdist_group("live faults")

CULPRIT = 1
COMPUTE_SECONDS = 0.2  # of a step: 20 ranks share the cores
SLEEP_SECONDS = 8.0
PATIENCE_SECONDS = 20.0
SETTLE_SECONDS = 1.0  # in case a verdict changes
IMPORTS = "torch._dynamo torch.distributed.fsdp torch.nn.parallel tensorwire.torch.traffic"


def sleep(context: FaultContext) -> None:
    context.tell("sleep", seconds=SLEEP_SECONDS)


def finish(context: FaultContext) -> None:
    context.together("finish", WORLD)


HEALTHY = Case("healthy", "", lambda context: None, "trains", seconds=2.0)
ASLEEP = Case("asleep", "TW-H1", sleep, "sleeps before a step, and goes on", stack="sleep")
FINISHED = Case("finished", "", finish, "all ranks end as scripts do", seconds=4.0)
STOPPED = Case("stopped", "TW-H1", lambda context: context.tell("stop_in_exchange"), "SIGSTOP between two messages")
LEFT_OUT = Case("left out", "TW-H2", lambda context: context.tell("leave_out"), "leaves out an all-to-all")
LAST = {"fsdp": FINISHED, "fsdp_gradients": FINISHED, "ddp": FINISHED, "backend": STOPPED, "all_to_all": LEFT_OUT}
"""What befalls the job of each way to attach in the end."""


class Watched:
    """A job, those who watch it, and by case what was wrong with what they found."""

    def __init__(self, fork_server: ForkServer, attach: str, stack: ExitStack) -> None:
        settings = {"attach": attach, "compute": COMPUTE_SECONDS}
        modules = ("tensorwire.probe", "-m", "tests.system.faults.programs.compressed_traffic")
        self.job = stack.enter_context(closing(TrainingJob(fork_server, settings, modules=modules)))
        self.watch = stack.enter_context(closing(LocalWatch(self.job.nodes[0], THRESHOLDS)))
        self.wrong: dict[str, str] = {}

    def inject(self, case: Case) -> None:
        self._case, self._start = case, time.monotonic()
        case.inject(FaultContext(self.job, CULPRIT, self.watch))

    def await_verdict(self) -> None:
        if self._case.code:
            self.watch.wait(PATIENCE_SECONDS, self._is_told)
        else:
            self.watch.wait(self._start + self._case.seconds - time.monotonic())

    def _is_told(self, findings: list[Finding]) -> bool:
        return any(not self._case.stack or CULPRIT in finding.stacks for finding in findings)

    def judge(self) -> None:
        self.wrong[self._case.name] = complaint(self._case, CULPRIT, self.watch.since(self._start), self._start)


def train_on(jobs: Iterable[Watched]) -> None:
    """Until all ranks train and nothing is found, as after a fault that is over."""
    for job, last in [(each.job, max(each.job.rounds())) for each in jobs]:
        job.wait_for_round(last + 3)
    for each in jobs:
        each.watch.wait(PATIENCE_SECONDS, lambda findings: not findings)


@pytest.fixture(scope="module")
def jobs() -> Iterator[dict[str, Watched]]:
    with ExitStack() as stack:
        fork_server = stack.enter_context(closing(ForkServer(TW_FAULTS_IMPORTS=IMPORTS)))
        jobs = {attach: Watched(fork_server, attach, stack) for attach in LAST}
        for cases in (dict.fromkeys(jobs, HEALTHY), dict.fromkeys(jobs, ASLEEP), LAST):
            train_on(jobs.values())
            for attach, job in jobs.items():
                job.inject(cases[attach])
            for job in jobs.values():
                job.await_verdict()
            time.sleep(SETTLE_SECONDS)
            for job in jobs.values():
                job.judge()
        yield jobs


@pytest.mark.parametrize("attach", LAST)
def test_nothing_is_found_in_a_job_that_trains(jobs: dict[str, Watched], attach: str) -> None:
    assert jobs[attach].wrong["healthy"] == ""


@pytest.mark.parametrize("attach", LAST)
def test_a_rank_that_sleeps_is_named(jobs: dict[str, Watched], attach: str) -> None:
    assert jobs[attach].wrong["asleep"] == ""


@pytest.mark.parametrize("attach", [attach for attach, case in LAST.items() if case is FINISHED])
def test_nothing_is_found_in_a_job_that_has_finished(jobs: dict[str, Watched], attach: str) -> None:
    assert [jobs[attach].job.status(rank) for rank in WORLD] == [0] * len(WORLD)
    assert jobs[attach].wrong["finished"] == ""


def test_a_rank_that_is_stopped_in_an_exchange_is_named(jobs: dict[str, Watched]) -> None:
    assert jobs["backend"].wrong["stopped"] == ""


def test_a_rank_that_leaves_out_an_exchange_is_named(jobs: dict[str, Watched]) -> None:
    assert jobs["all_to_all"].wrong["left out"] == ""
