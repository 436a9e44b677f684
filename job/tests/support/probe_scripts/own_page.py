"""What scripts of ranks share: where the pages are, what one says, and waiting until it says something."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tensorwire_job.page import call_file
from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import RankPage, read_page
from tensorwire_job.rank import probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensorwire_job.model import Call, ProcessGroup

directory = Path(os.environ["TENSORWIRE_PROBE_DIR"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
path = page_path(directory, rank, 0)


def page(of: int = rank) -> RankPage:
    found = read_page(page_path(directory, of, 0))
    assert found is not None
    return found


def groups(of: int = rank) -> list[ProcessGroup]:
    """What a page says of process groups; of one that is not there yet nothing."""
    found = read_page(page_path(directory, of, 0))
    return found.process_groups(time.monotonic()) if found else []


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, read_page(path)
        time.sleep(0.002)


def await_probe() -> None:
    """Until the probe has all in place that operations pass."""
    wait_until(lambda: probe._probe is not None and probe._probe._sampler is not None)


def last_calls() -> Sequence[Call]:
    """What this rank called last, once it has read it from now on."""
    begin = time.monotonic_ns()
    wait_until(lambda: (read := call_file.read(path)) is not None and read[0] >= begin and read[1])
    read = call_file.read(path)
    assert read is not None
    return read[1]
