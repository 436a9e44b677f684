"""The directory of a job's pages on one node: where it is, whose it is, and what is removed from it.

It holds a page for each generation of a rank, `rank-<rank>-<restart count>.page`, beside it `.sock` (the worker server
of that rank), `.stack` (its stacks, once asked for) and `.nccl.page` (of NCCL's plugin in the same process), and the
control page.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from . import process
from .control import CONTROL_NAME
from .rank_page import read_page

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .rank_page import Page

MAX_AGE_SECONDS = 24 * 3600.0
_PAGE_NAME = re.compile(r"rank-\d+-\d+(\.nccl)?\.page")
_FILE_NAME = re.compile(r"rank-\d+-\d+(\.nccl)?\.(page|sock|stack)")


def job_directory(run_id: str) -> Path:
    """Where the pages of a job lie on this node: TENSORWIRE_PROBE_DIR, or a directory below /dev/shm for the run."""
    given = os.environ.get("TENSORWIRE_PROBE_DIR")
    return Path(given) if given else root_directory() / re.sub(r"[^A-Za-z0-9_-]", "_", run_id)[:100]


def root_directory() -> Path:
    """Of all jobs of this user."""
    return Path(f"/dev/shm/tensorwire-{os.getuid()}")


def make_directory(path: Path) -> None:
    """Make it with mode 0700, or make sure that it is ours alone.

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
    """Whether it is a directory of this user's that nobody else may enter."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def page_path(directory: Path, rank: int, restart_count: int) -> Path:
    """Where the rank's page of a generation is."""
    return directory / f"rank-{rank}-{restart_count}.page"


def sweep(directory: Path, *, before_ns: int = 0) -> None:
    """Remove what dead jobs left: pages in `directory` whose last heartbeat was before the time (CLOCK_MONOTONIC) and
    whose process is gone, and directories of this user's other jobs that ended more than a day ago."""
    for path in _listing(directory):
        if _PAGE_NAME.fullmatch(path.name):
            page = read_page(path)
            if page is None or page.is_alive:
                continue
            if page.boot_id != process.boot_id() or page.header.heartbeat_ns < before_ns:
                remove_page(path)
    root = root_directory()
    for folder in _listing(root) if is_ours(root) else ():  # else who knows whose folders these are
        if folder != directory and not folder.is_symlink() and folder.is_dir() and _is_old(folder):
            _remove_job(folder)


def _remove_job(folder: Path) -> None:
    """With all that a job puts into its directory; anything else stays, and the directory with it."""
    with suppress(OSError):
        for path in _listing(folder):
            if path.name == CONTROL_NAME or _FILE_NAME.fullmatch(path.name):
                path.unlink(missing_ok=True)
        folder.rmdir()


def remove_page(path: Path) -> None:
    """With what stands beside it."""
    for suffix in (".sock", ".stack", ".page"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def _listing(directory: Path) -> Iterable[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _is_old(folder: Path) -> bool:
    """Whether no rank of it lives, or did, and nothing was made in it for a day."""
    paths = _listing(folder)
    try:
        newest = max(path.lstat().st_mtime for path in (folder, *paths))
    except OSError:
        return False
    if time.time() - newest < MAX_AGE_SECONDS:
        return False
    pages = (read_page(path) for path in paths if path.suffix == ".page")
    return not any(page is not None and (page.is_alive or _has_recent_heartbeat(page)) for page in pages)


def _has_recent_heartbeat(page: Page) -> bool:
    """Of a rank in another container nothing else shows that it lives; no write to shared memory dates its file."""
    age = time.monotonic() - page.header.heartbeat_ns / 1e9
    return page.boot_id == process.boot_id() and age < MAX_AGE_SECONDS
