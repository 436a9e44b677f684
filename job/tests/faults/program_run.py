"""Runs a program once, and judges what is said of it: live and then dead, or only after a signal has ended it."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from typing import TYPE_CHECKING

from tensorwire_job.model import ASKED, ASKED_SECONDS, Finding, Observation, Thresholds
from tensorwire_job.report import History
from tensorwire_job.service.follow import ask
from tensorwire_job.service.service import LocalJob

from .cases import GATES
from .program_job import ProgramJob
from .training_job import WORLD
from .verdicts import Judgement, judge
from .watch import LocalWatch, Poll, interrupted, is_finding

if TYPE_CHECKING:
    from .cases import Case, Ending
    from .fork_server import ForkServer
    from .watch import Record

IMPORTS = (
    "torch.distributed.checkpoint torch.distributed.fsdp torch.distributed.optim torch.distributed.pipelining "
    "torch.distributed.rpc torch.distributed.tensor.parallel torch.nn.parallel"
)
"""What programs need, imported once: it takes each rank seconds of CPU."""
_START_SECONDS = 120.0  # until the fault, on a busy machine
_SETTLE_SECONDS = 5.0  # after the first finding, in case it changes
_RECORDED_SECONDS = 20.0  # of the fault, at most: recordings are small


def run(fork_server: ForkServer, case: Case, rank: int, record: Record | None = None) -> Judgement:
    """Run a case once that has a program of its own."""
    dead: list[Finding] | None = None
    with closing(ProgramJob(fork_server, case, rank)) as job:
        if case.ending:
            polls, start = _of_the_dead(job, case.ending, record)
        else:
            polls, start = _of_the_living(job, case, record)
            if record is None:  # as one who sees it only after a scheduler has ended it
                job.end_by(signal.SIGTERM)
                dead = _ask(job, GATES)
    return judge(case, rank, polls, start, dead)


def _of_the_living(job: ProgramJob, case: Case, record: Record | None) -> tuple[list[Poll], float]:
    with closing(LocalWatch(job.nodes[0], GATES, record)) as watch:
        start = await_fault(job, watch)
        seconds = case.seconds if record is None else min(case.seconds, _RECORDED_SECONDS)
        found = watch.wait(start + seconds - time.monotonic(), lambda findings: any(map(is_finding, findings)))
        if found:
            watch.wait(_SETTLE_SECONDS)
    return watch.polls, start


def _of_the_dead(job: ProgramJob, ending: Ending, record: Record | None) -> tuple[list[Poll], float]:
    """What `diagnose` says after the signal, by its own thresholds."""
    start = await_fault(job)
    _sleep(start + ending.seconds - time.monotonic())
    job.end_by(signal.Signals[ending.name], ending.gap)
    findings = _ask(job, ASKED, record)
    return [Poll(time.monotonic(), findings)], start


def _ask(job: ProgramJob, thresholds: Thresholds, record: Record | None = None) -> list[Finding]:
    """What is said of the dead job."""
    with closing(_RecordedJob(job.nodes[0], thresholds)) as reader:
        reader.record = record
        [findings] = ask([(reader, History())], thresholds, seconds=ASKED_SECONDS)
    return findings


class _RecordedJob(LocalJob):
    """A job that is polled, and what is seen of it kept."""

    record: Record | None = None

    def poll(self) -> tuple[Observation, list[Finding]]:
        seen = super().poll()
        if self.record is not None:
            self.record(seen[0])
        return seen


def await_fault(job: ProgramJob, watch: LocalWatch | None = None) -> float:
    """The time of the fault, once it has come."""
    deadline = time.monotonic() + _START_SECONDS
    while (start := job.fault_time()) is None:
        if job.is_over or time.monotonic() > deadline:
            time.sleep(0.1)  # it may have ended of its fault just now
            if (start := job.fault_time()) is not None:
                return start
            texts = [path.read_text()[-1000:] for path in map(job.output, WORLD) if path.exists()]
            raise RuntimeError("the fault did not come:\n" + "\n".join(filter(None, texts)))
        if watch is not None and watch.trouble:
            raise RuntimeError(watch.trouble)
        _sleep(0.02)
    return start


def _sleep(seconds: float) -> None:
    if interrupted.wait(max(0.0, seconds)):
        raise KeyboardInterrupt
