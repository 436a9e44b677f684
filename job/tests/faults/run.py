"""Runs cases, each as often as wanted, in as few jobs as will do."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.support.links import Network

from .cases import WORLD, Case, FaultContext, TrainingStoppedError
from .fork_server import ForkServer
from .judge import complaint, is_notice
from .levels import levels_of
from .needs import build_clock, missing
from .services import Services
from .training_job import WORLD_SIZE, TrainingJob
from .watch import LocalWatch, Watch, WatchError, is_finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire_job.model import Finding, Observation

_BASELINE_SECONDS = 4.5  # of good times, before anything can be called slow
_MOMENT_SECONDS = 1.0  # before a hang, and after a verdict, in case it changes
_CALM_SECONDS = 2.5  # without findings, after a fault is mended
_PATIENCE_SECONDS = 20.0


@dataclass(frozen=True)
class Outcome:
    rank: int
    wrong: str  # what was wrong; "" if nothing
    seconds: float | None  # from the fault to the first finding
    levels: dict[str, bool]  # each confidence that a verdict had, and whether those verdicts were right


class Stage:
    """The job that cases run in, one after another as long as they fit, and what watches it."""

    def __init__(self) -> None:
        self._nurseries: dict[str, ForkServer] = {}
        self._job: TrainingJob | None = None
        self._watch: Watch | None = None
        self._network: Network | None = None
        self._key: object = None
        self._folder = TemporaryDirectory()

    def run(self, case: Case, rank: int, record: Callable[[Observation], None] | None = None) -> Outcome:
        """Run a case once. With `record`, in a job of its own, which is recorded from its start.

        Whatever it raises says nothing about the case: `reset`, and run it again.
        """
        job, watch = self._prepare(case, record)
        context = FaultContext(job, rank, watch)
        start = time.monotonic()
        wrong = ""
        try:
            case.inject(context)
            self._await_verdict(case, rank, watch)
            wrong = self._trouble(case, job, watch)
        except (TrainingStoppedError, WatchError) as error:
            wrong = str(error)
        finally:
            polls = watch.since(start)
            try:
                context.mend()
            except OSError:  # whom it befell may be gone
                if not wrong:
                    raise
        first = next((poll.time - start for poll in polls if any(map(is_finding, poll.findings))), None)
        levels = levels_of(case, rank, (finding for poll in polls for finding in poll.findings))
        outcome = Outcome(rank, wrong or complaint(case, rank, polls, start), first, levels)
        if record is not None or wrong or not case.mends or not self._is_calm_again(job, watch):
            self.clear()
        return outcome

    def _trouble(self, case: Case, job: TrainingJob, watch: Watch) -> str:
        """What is wrong whatever was found: the fault was to leave the ranks alive, and who watches them."""
        ended = [rank for rank in WORLD if job.status(rank) is not None]
        if case.mends and ended:
            return f"training stopped: ranks {ended} have ended"
        return watch.trouble

    def _prepare(self, case: Case, record: Callable[[Observation], None] | None) -> tuple[TrainingJob, Watch]:
        if record is not None or case.job != self._key or not case.mends:
            self.clear()
        if self._job is None or self._watch is None:
            fork_server = self._fork_server_for(case)
            if case.uses_network:
                self._network = Network(WORLD_SIZE)
            nodes = 2 if case.needs == "services" else 1
            self._job = TrainingJob(fork_server, case.settings, network=self._network, num_nodes=nodes)
            if nodes > 1:
                self._watch = Services(fork_server, self._job.folder, self._job.nodes, record)
            else:
                self._watch = LocalWatch(self._job.nodes[0], case.thresholds, record)
            self._key = case.job
            if "compile" not in case.settings:
                self._job.wait_for_round(3)
                is_quick = case.kind in ("lost", "hang")
                self._watch.wait(_MOMENT_SECONDS if is_quick else _BASELINE_SECONDS)
        return self._job, self._watch

    def _fork_server_for(self, case: Case) -> ForkServer:
        """One for all jobs, except those whose clock is to step."""
        name = "clock" if case.needs == "clock" else ""
        if name not in self._nurseries:
            environment = {"LD_PRELOAD": str(build_clock(Path(self._folder.name)))} if name else {}
            self._nurseries[name] = ForkServer(**environment)
        return self._nurseries[name]

    def _await_verdict(self, case: Case, rank: int, watch: Watch) -> None:
        def is_judged(findings: list[Finding]) -> bool:
            if case.kind == "none":
                return any(map(is_finding, findings))
            named = [finding for finding in findings if is_finding(finding)]
            return bool(named) and (not case.stack or any(rank in finding.stacks for finding in named))

        watch.wait(case.seconds, is_judged)
        if case.notice:
            watch.wait(_MOMENT_SECONDS, lambda findings: any(is_notice(finding, rank) for finding in findings))
        if case.kind != "none":
            watch.wait(_MOMENT_SECONDS)

    def _is_calm_again(self, job: TrainingJob, watch: Watch) -> bool:
        """Whether the job works as before, and nothing stands against it for a while."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        if not job.is_whole:
            return False
        try:
            job.wait_for_round(job.next_round() + 5, _PATIENCE_SECONDS)
        except RuntimeError:
            return False
        calm = time.monotonic()
        while time.monotonic() < deadline:
            if watch.findings:
                calm = time.monotonic()
            elif time.monotonic() - calm > _CALM_SECONDS:
                return True
            watch.wait(0.1)
        return False

    def clear(self) -> None:
        """End the job."""
        watch, job, network = self._watch, self._job, self._network
        self._watch = self._job = self._network = self._key = None
        try:
            if watch is not None:
                watch.close()
        finally:
            if job is not None:
                job.close()
            if network is not None:
                network.close()

    def reset(self) -> None:
        """End the job in whatever state it is, and what it was started by."""
        with suppress(Exception):
            self.clear()
        for fork_server in self._nurseries.values():
            with suppress(Exception):
                fork_server.close()
        self._nurseries.clear()

    def close(self) -> None:
        self.reset()
        self._folder.cleanup()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def reason_to_skip(case: Case) -> str:
    return missing(case.needs)


def show(case: Case, outcome: Outcome) -> str:
    seconds = "" if outcome.seconds is None else f" after {outcome.seconds:.1f} s"
    verdict = f"WRONG: {outcome.wrong}" if outcome.wrong else "right"
    return f"{case.name} at rank {outcome.rank}{seconds}: {verdict}"
