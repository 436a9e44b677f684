"""A job that stands still: real pages of four ranks, of which one has not entered what the others wait in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorwire_job.node import stacks
from tensorwire_job.page import native, script_file
from tensorwire_job.page.directory import page_path
from tensorwire_job.service import follow


def write_pages(directory: Path, run_id: str = "a-run", *, hangs: bool = True, script: str = "") -> list[int]:
    """What the probes of four ranks write, all of them in this process. Rank 1 has not entered operation 8; of a job
    that does not hang none has. Returns the handles of the pages."""
    directory.mkdir(mode=0o700)
    handles = []
    for rank in range(4):
        waits = hangs and rank != 1
        path = page_path(directory, rank, 0)
        handles.append(native.create(str(path), run_id, rank, 4, 0))
        script_file.write(path, script)
        slot = native.slot(handles[-1], 0xC0FFEE, b"default_pg", 4)
        native.counts(handles[-1], slot, 8 if waits else 7, 7)
        if waits:
            info = native.OperationInfo(8, 0, 1 << 20, 1 << 22, native.OPERATIONS.index("all_reduce"), 0, 65535, 0)
            native.describe(handles[-1], slot, info, native.now() - 60 * 10**9)
        native.heartbeat(handles[-1])
    return handles


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The pages of a job whose rank 1 the others wait for; no probe is there that could start a server."""
    monkeypatch.setattr(stacks, "_START_SECONDS", 0.05)
    monkeypatch.setattr(follow, "_INTERVAL_SECONDS", 0.1)
    handles = write_pages(tmp_path / "pages")
    yield tmp_path / "pages"
    for handle in handles:
        native.close(handle)
