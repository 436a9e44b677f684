"""Which directories are the jobs'."""

from __future__ import annotations

import errno
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from ..page import process
from ..page.directory import is_ours, root_directory
from ..page.rank_page import read_page

_JUDGED_SECONDS: Final = 3600.0  # after its end


def root_of(directory: Path | None) -> Path:
    """Where to look for pages: the given directory, or the one that probes use."""
    given = os.environ.get("TENSORWIRE_PROBE_DIR")
    return directory or (Path(given) if given else root_directory())


def find_directory(directory: Path | None) -> Path | None:
    """The directory with the newest page; None if there is none, or another user may have made it."""
    return next(iter(_pages_by_directory(directory)), None)


def job_directory(directory: Path | None) -> Path:
    """The directory of the newest job, or the given one.

    Raises:
        FileNotFoundError: no rank has a page there.
    """
    found = find_directory(directory)
    if found is None:
        raise _no_job(directory)
    return found


def jobs_here() -> tuple[list[Path], dict[Path, float]]:
    """The directories of this user's jobs on this machine: those to judge, and the others with the seconds since their
    end; both the newest first.

    A job is judged if it runs, if it ended within the last hour, or if it is the newest.

    Raises:
        FileNotFoundError: there is no job.
    """
    ended = {path: _ended_seconds(pages) for path, pages in _pages_by_directory(None).items()}
    if not ended:
        raise _no_job(None)
    judged = [path for number, path in enumerate(ended) if number == 0 or ended[path] <= _JUDGED_SECONDS]
    return judged, {path: seconds for path, seconds in ended.items() if path not in judged}


def _pages_by_directory(directory: Path | None) -> dict[Path, list[Path]]:
    """The pages in each directory, that with the newest page first; none where another user may have made them."""
    root = root_of(directory)
    if root == root_directory() and not is_ours(root):
        return {}
    pages = [*root.glob("rank-*.page"), *(() if directory else root.glob("*/rank-*.page"))]
    found: dict[Path, list[Path]] = defaultdict(list)
    for page in sorted(pages, key=_changed, reverse=True):
        found[page.parent].append(page)
    return found


def _ended_seconds(pages: list[Path]) -> float:
    """Since one of these ranks was heard of; 0 while one lives. A page that tells nothing is as old as its file."""
    ages = []
    for path in pages:
        page = read_page(path)
        if page is None or page.boot_id != process.boot_id():
            ages.append(time.time() - _changed(path))
        elif page.is_alive:
            return 0.0
        else:
            ages.append(time.monotonic() - page.header.heartbeat_ns / 1e9)
    return max(0.0, min(ages))


def _no_job(directory: Path | None) -> FileNotFoundError:
    message = (
        "no job with the probe; start one with torchrun ARGS -m tensorwire_job train.py, which takes "
        "seconds until it can be seen, or name the directory of one that runs, or ran, on this machine (--dir)"
    )
    return FileNotFoundError(errno.ENOENT, message, str(root_of(directory)))


def _changed(page: Path) -> float:
    try:
        return page.lstat().st_ctime
    except FileNotFoundError:  # swept meanwhile
        return 0.0
