"""Programs without the probe: what is said of the stacks that py-spy took of their ranks."""

from __future__ import annotations

import subprocess
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.environment import ROOT
from tensorwire_job.service.dumped_stacks import findings_of, read_places

from . import program_run
from .cases import GROUPS
from .fork_server import ForkServer
from .program_job import ProgramJob
from .verdicts import Judgement, judge
from .watch import Poll

if TYPE_CHECKING:
    from .cases import Case

SECONDS = 8.0
"""After the fault: the stacks are taken then."""
_DUMP_SECONDS = 15.0  # of one rank, on a busy machine; of one that is stopped py-spy never ends


def stack_cases() -> list[Case]:
    """All hangs that are looked at alive, each at one rank by turns, but those that gloo aborts: they leave no stacks.

    The ranks are started one by one, so that their pids are known.
    """
    programs = (case for cases in GROUPS.values() for case in cases if case.program and case.kind == "hang")
    living = [case for case in programs if not (case.launcher or case.ending or "gloo aborts" in case.about)]
    return [replace(case, ranks=(case.ranks[number % len(case.ranks)],)) for number, case in enumerate(living)]


class StackStage:
    """Runs programs one at a time, in place of `Stage`."""

    def __init__(self) -> None:
        self._fork_server: ForkServer | None = None

    def run(self, case: Case, rank: int) -> Judgement:
        if self._fork_server is None:
            self._fork_server = ForkServer(TW_FAULTS_IMPORTS=program_run.IMPORTS)
        with closing(ProgramJob(self._fork_server, case, rank, (f"{__package__}.programs",))) as job:
            start = program_run.await_fault(job)
            program_run.sleep(start + SECONDS - time.monotonic())
            folder = job.folder / "stacks"
            folder.mkdir()
            for each, pid in enumerate(job.pids):
                if job.status(each) is None:
                    (folder / f"rank{each}.txt").write_text(_dump(pid))
            places, _ = read_places(folder)
            found = findings_of(places)
        return judge(case, rank, [Poll(time.monotonic(), found)], start)

    def reset(self) -> None:
        if self._fork_server is not None:
            self._fork_server.close()
        self._fork_server = None

    def __enter__(self) -> StackStage:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()


def _dump(pid: int) -> str:
    """As the page on a job without the probe has it; "" of a rank that py-spy cannot read."""
    command = ["py-spy", "dump", "--full-filenames", "--pid", str(pid)]
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DUMP_SECONDS, check=False)
        return done.stdout.replace(f"{ROOT}/", "")  # results name no folder of a machine
    return ""
