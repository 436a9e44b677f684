"""The directory of a job's pages on one node: its place, its owner, and what is removed from it.

It holds a page for each generation of a rank, `rank-<rank>-<restart count>.page`. Beside it are `.sock` (the worker
server of that rank), `.script` (its script's name), `.stack` (its stacks, once asked for), `.calls` (its last calls,
once it stands still) and `.nccl.page` (of NCCL's plugin in the same process). The control page is there too.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from . import process
from .control import CONTROL_NAME
from .rank_page import read_page

if TYPE_CHECKING:
    from .rank_page import RankPage

MAX_AGE_SECONDS = 24 * 3600.0
_PAGE_NAME = re.compile(r"rank-\d+-\d+(\.nccl)?\.page")
_FILE_NAME = re.compile(r"rank-\d+-\d+(\.nccl)?\.(page|sock|script|stack|calls|calls\.new)")


def job_directory(run_id: str) -> Path:
    """Where the pages of a job lie on this node: TENSORWIRE_PROBE_DIR, or a directory below /dev/shm for the run."""
    given = os.environ.get("TENSORWIRE_PROBE_DIR")
    return Path(given) if given else root_directory() / re.sub(r"[^A-Za-z0-9_-]", "_", run_id)[:100]


def root_directory() -> Path:
    """The directory of all jobs of this user."""
    return Path(f"/dev/shm/tensorwire-{os.getuid()}")


def make_directory(path: Path) -> None:
    """Make a directory with mode 0700, or make sure that it is ours alone.

    Raises:
        OSError: it cannot be made, or others may enter it.
    """
    for folder in dict.fromkeys((root_directory(), path) if root_directory() in path.parents else (path,)):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
            raise OSError(
                errno.EPERM,
                "expected a directory that this user owns; name another one in TENSORWIRE_PROBE_DIR",
                str(folder),
            )
        if facts.st_mode & 0o077:
            mode = stat.S_IMODE(facts.st_mode)
            raise OSError(errno.EPERM, f"others may enter this directory (mode {mode:04o}): chmod 700 it", str(folder))


def is_ours(folder: Path) -> bool:
    """Whether this is a directory of this user's that no other user may enter."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def page_path(directory: Path, rank: int, restart_count: int) -> Path:
    """Where the rank's page of a generation is."""
    return directory / f"rank-{rank}-{restart_count}.page"


def sweep(directory: Path, *, before_ns: int = 0) -> None:
    """Remove the pages in `directory` whose process is gone and whose last heartbeat was before the time
    (CLOCK_MONOTONIC), a control page from before it once no page is left, and the directories of this user's other jobs
    that ended more than a day ago."""
    are_left = False
    for path in _listing(directory):
        if _PAGE_NAME.fullmatch(path.name):
            page = read_page(path)
            if page is None:
                continue
            if page.is_alive or (page.boot_id == process.boot_id() and page.header.heartbeat_ns >= before_ns):
                are_left = True
            else:
                remove_page(path)
    if not are_left:
        _remove_control(directory / CONTROL_NAME, before_ns)
    root = root_directory()
    for folder in _listing(root) if is_ours(root) else ():  # else the folders may be another user's
        if folder != directory and not folder.is_symlink() and folder.is_dir() and _is_old(folder):
            _remove_job(folder)


def _remove_control(path: Path, before_ns: int) -> None:
    """Remove a control page that was made before the time. It asks an earlier job, and its agent may have died."""
    with suppress(OSError):
        age_ns = time.time_ns() - path.lstat().st_mtime_ns
        if time.monotonic_ns() - age_ns < before_ns:
            path.unlink()


def _remove_job(folder: Path) -> None:
    """Remove a directory with all that a job puts into it; anything else stays, and the directory with it."""
    with suppress(OSError):
        for path in _listing(folder):
            if path.name == CONTROL_NAME or _FILE_NAME.fullmatch(path.name):
                path.unlink(missing_ok=True)
        folder.rmdir()


def remove_page(path: Path) -> None:
    """Remove a page and the files beside it."""
    for suffix in (".sock", ".script", ".stack", ".calls", ".calls.new", ".page"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def _listing(directory: Path) -> Iterable[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _is_old(folder: Path) -> bool:
    """Whether no rank of a job lives, and none did or wrote anything for a day."""
    paths = _listing(folder)
    try:
        newest = max(path.lstat().st_mtime for path in (folder, *paths))
    except OSError:
        return False
    if time.time() - newest < MAX_AGE_SECONDS:
        return False
    pages = (read_page(path) for path in paths if path.suffix == ".page")
    return not any(page is not None and (page.is_alive or _has_recent_heartbeat(page)) for page in pages)


def _has_recent_heartbeat(page: RankPage) -> bool:
    """Whether a rank in another container may live: a write to shared memory does not date its file."""
    age = time.monotonic() - page.header.heartbeat_ns / 1e9
    return page.boot_id == process.boot_id() and age < MAX_AGE_SECONDS
