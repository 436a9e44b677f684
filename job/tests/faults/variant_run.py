"""Runs a variant once, and judges what is said of it: live and then dead, or only after a signal has ended it."""

from __future__ import annotations

import signal
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from tensorwire_job.model import ASKED, ASKED_SECONDS, Finding, Observation
from tensorwire_job.report import History
from tensorwire_job.service.follow import ask
from tensorwire_job.service.service import LocalJob

from .fork_server import ForkServer
from .training_job import WORLD_SIZE
from .variant_job import VariantJob
from .variants import GATES, Ending, Variant
from .verdicts import Judgement, judge
from .watch import LocalWatch, Poll, interrupted, is_finding

if TYPE_CHECKING:
    from collections.abc import Callable

    Record = Callable[[Observation], None]

# What programs need, imported once: it takes each rank seconds of CPU.
_IMPORTS = (
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.rpc",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
)
_START_SECONDS = 120.0  # until the fault, on a busy machine
_SETTLE_SECONDS = 5.0  # after the first finding, in case it changes
_RECORDED_SECONDS = 20.0  # of the fault, at most: recordings are small


class VariantStage:
    """Runs variants, one at a time, in jobs of their own."""

    def __init__(self) -> None:
        self._fork_server: ForkServer | None = None

    def run(self, variant: Variant, rank: int, record: Record | None = None) -> Judgement:
        """Run a variant once.

        Whatever it raises says nothing about the variant: `reset`, and run it again.
        """
        if self._fork_server is None:
            self._fork_server = ForkServer(TW_FAULTS_IMPORTS=" ".join(_IMPORTS))
        job = VariantJob(self._fork_server, variant, rank)
        dead: list[Finding] | None = None
        try:
            if variant.ending:
                polls, start = _of_the_dead(job, variant.ending, record)
            else:
                polls, start = _of_the_living(job, variant, record)
                dead = _once_ended(job) if record is None else None
        finally:
            job.close()
        return judge(variant, rank, polls, start, dead)

    def reset(self) -> None:
        """End whatever runs."""
        if self._fork_server is not None:
            with suppress(Exception):
                self._fork_server.close()
        self._fork_server = None

    def __enter__(self) -> VariantStage:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()


def _of_the_living(job: VariantJob, variant: Variant, record: Record | None) -> tuple[list[Poll], float]:
    watch = LocalWatch(job.nodes[0], GATES, record)
    try:
        start = _await_fault(job, watch)
        seconds = variant.seconds if record is None else min(variant.seconds, _RECORDED_SECONDS)
        found = watch.wait(start + seconds - time.monotonic(), lambda findings: any(map(is_finding, findings)))
        if found:
            watch.wait(_SETTLE_SECONDS)
    finally:
        watch.close()
    return watch.polls, start


def _of_the_dead(job: VariantJob, ending: Ending, record: Record | None) -> tuple[list[Poll], float]:
    """What `diagnose` says after the signal, by its own thresholds."""
    start = _await_fault(job)
    _sleep(start + ending.seconds - time.monotonic())
    job.end_by(signal.Signals[ending.name], ending.gap)
    with closing(LocalJob(job.nodes[0], ASKED)) as reader:
        [findings] = ask([(_Recorded(reader, record), History())], ASKED, seconds=ASKED_SECONDS)
    return [Poll(time.monotonic(), findings)], start


def _once_ended(job: VariantJob) -> list[Finding]:
    """What is said of the job by somebody who sees it only after a scheduler has ended it."""
    job.end_by(signal.SIGTERM)
    with closing(LocalJob(job.nodes[0], GATES)) as reader:
        [findings] = ask([(reader, History())], GATES, seconds=ASKED_SECONDS)
    return findings


class _Recorded:
    """A job that is polled, and what is seen of it kept."""

    def __init__(self, job: LocalJob, record: Record | None) -> None:
        self._job, self._record = job, record

    def poll(self) -> tuple[Observation, list[Finding]]:
        observation, findings = self._job.poll()
        if self._record is not None:
            self._record(observation)
        return observation, findings

    @property
    def awaits_stacks(self) -> bool:
        return self._job.awaits_stacks


def _await_fault(job: VariantJob, watch: LocalWatch | None = None) -> float:
    """The time of the fault, once it has come."""
    deadline = time.monotonic() + _START_SECONDS
    while (start := job.fault_time()) is None:
        if job.is_over or time.monotonic() > deadline:
            time.sleep(0.1)  # it may have ended of its fault just now
            if (start := job.fault_time()) is not None:
                return start
            texts = [path.read_text()[-1000:] for path in map(job.output, range(WORLD_SIZE)) if path.exists()]
            raise RuntimeError("the fault did not come:\n" + "\n".join(filter(None, texts)))
        if watch is not None and watch.trouble:
            raise RuntimeError(watch.trouble)
        _sleep(0.02)
    return start


def _sleep(seconds: float) -> None:
    if interrupted.wait(max(0.0, seconds)):
        raise KeyboardInterrupt


def show(variant: Variant, rank: int, judged: Judgement) -> str:
    seconds = "" if judged.seconds is None else f" after {judged.seconds:.1f} s"
    verdict = "right" if judged.is_right else "WRONG: " + " / ".join(judged.wrong)
    return f"{variant.name} at rank {rank}{seconds}: {judged.said}: {verdict}"
