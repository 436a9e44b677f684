"""A rank that waits for a worker of its data loader."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from job.tests.support.probe_jobs import PROBE, SCRIPTS, environment
from tensorwire_job.node import stacks
from tensorwire_job.node.observer import Observer

if TYPE_CHECKING:
    from pathlib import Path

    from tensorwire_job.model import Rank

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("probe")  # one job at a time


def test_worker_that_is_blocked_is_part_of_its_rank(tmp_path: Path) -> None:
    """Its state, what it waits in, and its stack; the rank is in its data loader."""
    directory = tmp_path / "pages"
    fifo = tmp_path / "fifo"
    command = [sys.executable, *PROBE, str(SCRIPTS / "data_loader.py"), str(fifo)]
    with subprocess.Popen(command, env=environment(directory, RANK="0", WORLD_SIZE="1")) as child:
        try:
            with closing(Observer(directory, "node")) as observer:
                rank = blocked_rank(observer)
                (worker,) = [each for each in rank.process.workers if each.name == "pt_data_worker"]
                assert worker.state == "S"
                assert rank.activity == "DataLoader"
                target = observer.target(0)
                assert target is not None
                text = stacks.fetch(target)
                assert f"process {worker.pid} (pt_data_worker), state S" in text
                assert "__getitem__" in text.partition(f"process {worker.pid}")[2]
        finally:
            child.kill()
            with suppress(OSError):  # the worker comes back from the file, and sees that its parent is gone
                os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


def blocked_rank(observer: Observer) -> Rank:
    """Once it is in its loader and a worker has gone to sleep."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        rank = observer.observe().ranks.get(0)
        if rank is not None and rank.activity and [w.state for w in rank.process.workers if "data" in w.name] == ["S"]:
            time.sleep(0.5)  # it is in the call that it does not come back from
            return observer.observe().ranks[0]
        time.sleep(0.1)
    raise AssertionError(rank)
