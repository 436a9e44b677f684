"""Jobs whose messages are compressed: nothing is found in good times, and the rank at fault is named as without codecs.

There is a job for each way to attach. Several run at once and in one test, since most of the time is waiting.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", "2.13")  # for the backend

from job.tests.faults.cases import Case
from job.tests.faults.fork_server import ForkServer
from job.tests.faults.injections import FaultContext
from job.tests.faults.training_job import WORLD, TrainingJob
from job.tests.faults.verdicts import complaint
from job.tests.faults.watch import THRESHOLDS, LocalWatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorwire_job.model import Finding

pytestmark = pytest.mark.xdist_group("live faults")

CULPRIT = 1
COMPUTE_SECONDS = 0.2  # of a step: 16 ranks share the cores
PATIENCE_SECONDS = 30.0
LOOK_SECONDS = THRESHOLDS.lost_seconds + 0.5  # what changes later is not looked at
IMPORTS = "torch._dynamo torch.distributed.fsdp torch.nn.parallel tensorwire.torch.traffic"


def oversleep(context: FaultContext) -> None:
    context.tell("oversleep")
    context.undo.append((context.job.folder / "alarm").touch)


def finish(context: FaultContext) -> None:
    context.together("finish", WORLD)


HEALTHY = Case("healthy", "trains")
ASLEEP = Case("asleep", "sleeps before a step, and goes on", ("TW-H1",), stack="oversleep")
FINISHED = Case("finished", "all ranks end as scripts do")
STOPPED = Case("stopped", "SIGSTOP between two messages", ("TW-H1",), function="tell stop_in_exchange")
LEFT_OUT = Case("left out", "leaves out an all-to-all", ("TW-H2",), function="tell leave_out")
INJECT = {"asleep": oversleep, "finished": finish}  # others do it by their function
LAST = {"fsdp": FINISHED, "fsdp_gradients": FINISHED, "ddp": FINISHED, "backend": STOPPED, "all_to_all": LEFT_OUT}
"""What befalls the job of each way to attach in the end."""


class Watched:
    """A job, those who watch it, and by case what was wrong with what they found."""

    def __init__(self, fork_server: ForkServer, attach: str, stack: ExitStack) -> None:
        settings = {"attach": attach, "compute": COMPUTE_SECONDS}
        modules = ("tensorwire_job", "-m", "job.tests.faults.programs.compressed_traffic")
        self.job = stack.enter_context(closing(TrainingJob(fork_server, settings, modules=modules)))
        self.watch = stack.enter_context(closing(LocalWatch(self.job.nodes[0], THRESHOLDS)))
        self.wrong: dict[str, str] = {}

    def inject(self, case: Case) -> None:
        self._case, self._start = case, time.monotonic()
        self._context = FaultContext(self.job, CULPRIT, self.watch)
        INJECT.get(case.name, case.inject)(self._context)

    def await_verdict(self) -> None:
        if self._case is FINISHED:
            self.watch.wait(PATIENCE_SECONDS, lambda _: None not in self.exit_codes)
        elif self._case.codes:
            self.watch.wait(PATIENCE_SECONDS, self._is_told)

    def _is_told(self, findings: list[Finding]) -> bool:
        return any(not self._case.stack or CULPRIT in finding.stacks for finding in findings)

    def judge(self) -> None:
        self.wrong[self._case.name] = complaint(self._case, CULPRIT, self.watch.since(self._start), self._start)
        self._context.mend()

    @property
    def exit_codes(self) -> list[int | None]:
        return [self.job.status(rank) for rank in WORLD]


def train_on(jobs: Iterable[Watched]) -> None:
    """Until all ranks train and nothing is found, as after a fault that is over."""
    for job, last in [(each.job, max(each.job.rounds())) for each in jobs]:
        job.wait_for_round(last + 3)
    for each in jobs:
        each.watch.wait(PATIENCE_SECONDS, lambda findings: not findings)


@pytest.mark.slow
@pytest.mark.parametrize("attaches", [["backend"], ["fsdp", "fsdp_gradients", "ddp", "all_to_all"]])
def test_what_is_found_is_what_befell_each_job(attaches: list[str]) -> None:
    last = {attach: LAST[attach] for attach in attaches}
    with ExitStack() as stack:
        fork_server = stack.enter_context(closing(ForkServer(TW_FAULTS_IMPORTS=IMPORTS)))
        jobs = {attach: Watched(fork_server, attach, stack) for attach in attaches}
        for cases in (dict.fromkeys(jobs, HEALTHY), dict.fromkeys(jobs, ASLEEP), last):
            train_on(jobs.values())
            for attach, job in jobs.items():
                job.inject(cases[attach])
            for job in jobs.values():
                job.await_verdict()
            time.sleep(LOOK_SECONDS)
            for job in jobs.values():
                job.judge()
        ended = {attach for attach, job in jobs.items() if None not in job.exit_codes}
    assert {attach: job.wrong for attach, job in jobs.items()} == {
        attach: dict.fromkeys(["healthy", "asleep", case.name], "") for attach, case in last.items()
    }
    assert ended == {attach for attach, case in last.items() if case is FINISHED}
