"""One rank of eight, which needs no torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import RankPage, read_page

from .probe_jobs import PROBE, environment, run


def run_rank(
    script: Path, text: str, directory: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    script.write_text(text)
    own = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", **variables}
    return run([*PROBE, str(script), *arguments], environment(directory, **own))


def left(directory: Path, rank: int = 3) -> RankPage:
    found = read_page(page_path(directory, rank, 0))
    assert found is not None
    return found


@contextmanager
def living_rank(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps its page."""
    code = "import time; from tensorwire_job import attach; attach(); print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment(directory, RANK="3"), stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        try:
            yield rank
        finally:
            rank.kill()
