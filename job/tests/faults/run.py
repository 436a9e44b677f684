"""Runs cases, each as often as wanted, in as few jobs as will do."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.support.links import Network

from . import program_run
from .fork_server import ForkServer
from .injections import FaultContext, TrainingStoppedError
from .needs import build_clock
from .services import Services
from .training_job import WORLD, WORLD_SIZE, TrainingJob
from .verdicts import Judgement, is_notice, judge
from .watch import LocalWatch, Watch, WatchError, is_finding

if TYPE_CHECKING:
    from tensorwire_job.model import Finding

    from .cases import Case
    from .watch import Record

_BASELINE_SECONDS = 4.5  # of good times, before anything can be called slow
_MOMENT_SECONDS = 1.0  # before a hang, and after a verdict, in case it changes
_CALM_SECONDS = 2.5  # without findings, after a fault is mended
_PATIENCE_SECONDS = 20.0


class Stage:
    """Runs cases one at a time. Cases of the matrix that can share a job have it one after another."""

    def __init__(self) -> None:
        self._fork_servers: dict[str, ForkServer] = {}
        self._open = ExitStack()  # the job, its network, and what watches it
        self._job: TrainingJob | None = None
        self._watch: Watch | None = None
        self._key: object = None
        self._folder = TemporaryDirectory()

    def run(self, case: Case, rank: int, record: Record | None = None) -> Judgement:
        """Run a case once. With `record`, in a job of its own, which is recorded from its start.

        Whatever it raises says nothing about the case: `reset`, and run it again.
        """
        if case.program:
            return program_run.run(self.fork_server_for(case), case, rank, record)
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
        judged = judge(case, rank, polls, start, trouble=wrong)
        if record is not None or wrong or not case.mends:
            self.clear()
        return judged

    def _trouble(self, case: Case, job: TrainingJob, watch: Watch) -> str:
        """What is wrong whatever was found: the fault was to leave the ranks alive, and who watches them."""
        ended = [rank for rank in WORLD if job.status(rank) is not None]
        if case.mends and ended:
            return f"training stopped: ranks {ended} have ended"
        return watch.trouble

    def _prepare(self, case: Case, record: Record | None) -> tuple[TrainingJob, Watch]:
        if not (record is None and case.job == self._key and case.mends and self._is_calm_again()):
            self.clear()
        if self._job is None or self._watch is None:
            fork_server = self.fork_server_for(case)
            network = self._open.enter_context(closing(Network(WORLD_SIZE))) if case.uses_network else None
            nodes = 2 if case.needs == "services" else 1
            job = TrainingJob(fork_server, case.settings, network=network, num_nodes=nodes)
            self._job = self._open.enter_context(closing(job))
            watch: Watch
            if nodes > 1:
                watch = Services(fork_server, job.folder, job.nodes, record)
            else:
                watch = LocalWatch(job.nodes[0], case.thresholds, record)
            self._watch = self._open.enter_context(closing(watch))
            self._key = case.job
            if "compile" not in case.settings:
                self._job.wait_for_round(3)
                is_quick = case.kind in ("lost", "hang")
                self._watch.wait(_MOMENT_SECONDS if is_quick else _BASELINE_SECONDS)
        return self._job, self._watch

    def fork_server_for(self, case: Case) -> ForkServer:
        """One for all jobs of the matrix, except those whose clock is to step, and one for programs."""
        name = "programs" if case.program else "clock" if case.needs == "clock" else ""
        if name not in self._fork_servers:
            environment = {"TW_FAULTS_IMPORTS": program_run.IMPORTS} if case.program else {}
            if name == "clock":
                environment["LD_PRELOAD"] = str(build_clock(Path(self._folder.name)))
            self._fork_servers[name] = ForkServer(**environment)
        return self._fork_servers[name]

    def _await_verdict(self, case: Case, rank: int, watch: Watch) -> None:
        def is_judged(findings: list[Finding]) -> bool:
            named = [finding for finding in findings if is_finding(finding)]
            return bool(named) and (not case.codes or not case.stack or any(rank in each.stacks for each in named))

        watch.wait(case.seconds, is_judged)
        if case.notice:
            watch.wait(_MOMENT_SECONDS, lambda findings: any(is_notice(case, rank, finding) for finding in findings))
        if case.codes:
            watch.wait(_MOMENT_SECONDS)

    def _is_calm_again(self) -> bool:
        """Whether the job works as before the last case, and nothing stands against it for a while."""
        job, watch = self._job, self._watch
        deadline = time.monotonic() + _PATIENCE_SECONDS
        if job is None or watch is None or not job.is_whole:
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
        self._job = self._watch = self._key = None
        self._open.close()

    def reset(self) -> None:
        """End the job in whatever state it is, and what it was started by."""
        with suppress(Exception):
            self.clear()
        for fork_server in self._fork_servers.values():
            with suppress(Exception):
                fork_server.close()
        self._fork_servers.clear()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()
        self._folder.cleanup()
