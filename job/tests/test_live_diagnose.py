"""The answer of `tensorwire-job diagnose` when a job has crawled for a while."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("torch")

from job.tests.faults.fork_server import ForkServer
from job.tests.faults.training_job import WORLD_SIZE, TrainingJob
from tensorwire_job.model import ASKED
from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import read_page
from tests.support.waiting import wait_for

# The job crawls for as long as a person would wait: test_live_faults.py names the slow rank in less time.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live faults")]  # one job at a time

CULPRIT = 2
SLEEP = 0.6  # seconds in steps of 0.02: ten times what the gate asks for


def test_the_slow_rank_of_a_job_that_crawls_already() -> None:
    with closing(ForkServer()) as fork_server, closing(TrainingJob(fork_server, {})) as job:
        pages = [page_path(job.nodes[0], rank, 0) for rank in range(WORLD_SIZE)]
        wait_for(lambda: all(map(knows_baseline, pages)), 60)
        job.command([CULPRIT], "set", late=SLEEP)
        job.wait_for_round(job.next_round())
        time.sleep(ASKED.slow_seconds)
        asked = subprocess.run(
            [sys.executable, "-m", "tensorwire_job.cli", "diagnose"],
            env={**os.environ, "TENSORWIRE_PROBE_DIR": str(job.nodes[0])},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (asked.returncode, asked.stderr) == (3, ""), asked.stdout
    finding = asked.stdout.partition("\n\n")[2]
    first = rf"rank {CULPRIT} comes late.*\n  found [\d.]+ m?s ago; \w+ confidence.* \(TW-S1, "
    assert re.match(first, finding), asked.stdout
    assert f"stack of rank {CULPRIT}:" in asked.stdout


def knows_baseline(path: Path) -> bool:
    page = read_page(path) if path.exists() else None
    return page is not None and any(group.baseline_rate for group in page.process_groups(time.monotonic()))
