"""A job that stands still: real pages of four ranks, of which one has not entered what the others wait in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tensorwire.diagnosis.page import native
from tensorwire.diagnosis.page.directory import page_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Path]:
    """What the probes of four ranks have written, all of them in this process; rank 1 has not entered operation 8."""
    directory = tmp_path / "pages"
    directory.mkdir(mode=0o700)
    handles = []
    for rank in range(4):
        path = page_path(directory, rank, 0)
        handles.append(native.create(str(path), "a-run", rank, 4, 0))
        slot = native.slot(handles[-1], 0xC0FFEE, b"default_pg", 4)
        native.counts(handles[-1], slot, 7 if rank == 1 else 8, 7)
        if rank != 1:
            info = native.OperationInfo(8, 0, 1 << 20, 1 << 22, native.OPERATIONS.index("all_reduce"), 0, 65535, 0)
            native.describe(handles[-1], slot, info, native.now() - 60 * 10**9)
        native.heartbeat(handles[-1])
    yield directory
    for handle in handles:
        native.close(handle)
