"""A restart by torch's own elastic launcher is no fault, and the generations of its ranks are never mixed."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from job.tests.support.probe_jobs import SCRIPTS, environment

pytest.importorskip("torch")

from tensorwire_job.model import Thresholds
from tensorwire_job.service.service import LocalJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tensorwire_job.model import Finding, Observation

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live faults")]  # one job at a time

WORLD_SIZE = 2
THRESHOLDS = Thresholds(hang_seconds=3.0, slow_seconds=2.0)  # a loss is told as late as by default: after the restart
CALM_SECONDS = 6.0
PATIENCE_SECONDS = 120.0


def test_one_failure_one_restart_no_finding(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(WORLD_SIZE)]
    command += ["--standalone", "--max-restarts", "1", "-m", "tensorwire_job"]
    with (tmp_path / "output").open("w") as output:
        launcher = subprocess.Popen(
            [*command, str(SCRIPTS / "elastic.py"), str(tmp_path)],
            # Else ranks of the second generation find the addresses of the first in the store (torch 2.13, gloo).
            env=environment(pages, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    polls: list[tuple[Observation, list[Finding]]] = []
    try:
        wait_for(launcher, tmp_path, pages.is_dir)
        job = LocalJob(pages, THRESHOLDS)
        try:

            def poll() -> Observation:
                polls.append(job.poll())
                return polls[-1][0]

            wait_for(launcher, tmp_path, lambda: generations(poll()) == [1] * WORLD_SIZE)
            wait_for(launcher, tmp_path, lambda: len(completed(poll())) == WORLD_SIZE)
            first = completed(polls[-1][0])
            calm = time.monotonic() + CALM_SECONDS
            # The second generation goes on.
            wait_for(launcher, tmp_path, lambda: min(completed(poll())) > max(first) and time.monotonic() > calm)
        finally:
            job.close()
        (tmp_path / "stop").touch()
        assert launcher.wait(PATIENCE_SECONDS) == 0, (tmp_path / "output").read_text()
    finally:
        launcher.terminate()  # and with it the ranks
        launcher.wait()
    for number in range(WORLD_SIZE):
        seen = [observation.ranks[number] for observation, _ in polls if number in observation.ranks]
        assert [rank.generation for rank in seen] == sorted(rank.generation for rank in seen)
        assert len({(rank.generation, rank.pid) for rank in seen}) == len({rank.pid for rank in seen}) == 2
    assert not [finding for finding in polls[-1][1] if finding.level == "finding"]


def generations(observation: Observation) -> list[int]:
    return [rank.generation for rank in observation.ranks.values()]


def completed(observation: Observation) -> list[int]:
    """Operations of each rank; of a rank without a process group nothing."""
    return [group.completed for rank in observation.ranks.values() for group in rank.process_groups]


def wait_for(launcher: subprocess.Popen[bytes], folder: Path, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert launcher.poll() is None, (folder / "output").read_text()
        assert time.monotonic() < deadline, (folder / "output").read_text()
        time.sleep(0.1)
