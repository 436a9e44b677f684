"""Pages of mapped files come into memory in the background, and no more of them than there is room for."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path

import pytest

from tensorwire.storage import pages
from tensorwire.storage.local import InputFile
from tensorwire.storage.pages import PagesAhead
from tests.support.acting import raising
from tests.support.waiting import wait_for

NBYTES = 16 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(os.urandom(1 << 20) * 16)
    return tmp_path / "file"


def resident_nbytes(path: Path) -> int:
    """How much of the maps of a file is in the page table of this process."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


@pytest.fixture(autouse=True)
def can_populate() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        if not pages._populate(pages._MappedBytes(weakref.ref(memory), 0, mmap.PAGESIZE)):
            pytest.skip("the system cannot populate maps")


def test_nobody_has_to_touch_them(path: Path) -> None:
    with InputFile(path) as file:
        PagesAhead().add([(file.map, 5000, 9 << 20), (file.map, 9 << 20, 7 << 20)])
        wait_for(lambda: resident_nbytes(path) >= NBYTES - mmap.PAGESIZE)
        assert file.map[:] == path.read_bytes()


def test_it_goes_on_after_it_has_ended(path: Path) -> None:
    with InputFile(path) as file:
        ahead = PagesAhead()
        for start in range(0, NBYTES, NBYTES // 4):
            ahead.add([(file.map, start, NBYTES // 4)])
            wait_for(lambda start=start: resident_nbytes(path) >= start + NBYTES // 4)  # type: ignore[misc]
            wait_for(lambda: not ahead._running)


def test_half_of_the_memory_is_the_most(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "memory_nbytes", lambda: 16 << 20)
    monkeypatch.setattr(pages, "_STEP_NBYTES", 4 << 20)
    with InputFile(path) as file:
        ahead = PagesAhead()
        ahead.add([(file.map, 0, NBYTES)])
        wait_for(lambda: not ahead._running)
        # The kernel enters pages around those that were asked for, too, and has a page that it moves in no table.
        wait_for(lambda: resident_nbytes(path) >= 8 << 20)
        assert resident_nbytes(path) <= 10 << 20
        ahead.add([(file.map, 0, NBYTES)])
        wait_for(lambda: not ahead._running)
        assert resident_nbytes(path) <= 10 << 20


def test_a_file_that_gets_shorter_kills_nobody(path: Path) -> None:
    with InputFile(path) as file:
        file.map  # noqa: B018 - it is made now
        os.truncate(path, 1 << 20)
        ahead = PagesAhead()
        ahead.add([(file.map, 0, NBYTES)])
        wait_for(lambda: not ahead._running)
        assert ahead._left == 0


def test_a_map_is_not_kept(path: Path) -> None:
    file = InputFile(path)
    map_ = weakref.ref(file.map)
    PagesAhead().add([(file.map, 0, NBYTES)] * 100)
    del file
    wait_for(lambda: map_() is None)


def test_without_a_thread_nothing_is_read_ahead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.Thread.start", raising(RuntimeError("can't start new thread")))
    with InputFile(path) as file:
        ahead = PagesAhead()
        ahead.add([(file.map, 0, NBYTES)])
        monkeypatch.undo()
        ahead.add([])
        wait_for(lambda: resident_nbytes(path) >= NBYTES)


def test_the_memory_is_that_of_the_machine_or_less() -> None:
    assert 0 < pages.memory_nbytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
