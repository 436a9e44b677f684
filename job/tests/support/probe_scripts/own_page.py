"""What scripts of ranks share: where the pages are, what one says, and waiting until it says something."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tensorwire_job.page.directory import page_path
from tensorwire_job.page.rank_page import RankPage, read_page

if TYPE_CHECKING:
    from collections.abc import Callable

directory = Path(os.environ["TENSORWIRE_PROBE_DIR"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def page(of: int = rank) -> RankPage:
    found = read_page(page_path(directory, of, 0))
    assert found is not None
    return found


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, read_page(page_path(directory, rank, 0))
        time.sleep(0.001)
