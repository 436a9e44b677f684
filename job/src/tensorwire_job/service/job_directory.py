"""Which directories are the jobs'."""

from __future__ import annotations

import errno
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..page import process, script_file
from ..page.directory import is_ours, root_directory
from ..page.rank_page import read_page

_JUDGED_SECONDS: Final = 3600.0  # after its end


@dataclass(frozen=True, slots=True)
class JobHere:
    """A job with pages on this machine.

    Attributes:
        script: the name of its script or module; "" where that is not known.
        started: when its first rank did, in seconds since 1970; None where that is not known.
        ended_seconds: since one of its ranks was heard of; 0 while one lives.
    """

    path: Path
    script: str = ""
    started: float | None = None
    ended_seconds: float = 0.0


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


def jobs_here(directory: Path | None = None, *, with_old: bool = False) -> tuple[list[JobHere], list[JobHere]]:
    """This user's jobs on this machine, or the one of a directory: those to judge, and the others; the newest first.

    A job is judged if it runs, if it ended within the last hour, or if it is the newest; with `with_old` each is.

    Raises:
        FileNotFoundError: there is no job.
    """
    found = list(_pages_by_directory(directory).items())[: 1 if directory else None]
    if not found:
        raise _no_job(directory)
    jobs = [_job_here(path, pages) for path, pages in found]
    old = [] if with_old else [job for job in jobs[1:] if job.ended_seconds > _JUDGED_SECONDS]
    return [job for job in jobs if job not in old], old


def _pages_by_directory(directory: Path | None) -> dict[Path, list[Path]]:
    """The pages in each directory, that of the job that started last first; none where another user may have made
    them."""
    root = root_of(directory)
    if root == root_directory() and not is_ours(root):
        return {}
    pages = [*root.glob("rank-*.page"), *(() if directory else root.glob("*/rank-*.page"))]
    found: dict[Path, list[Path]] = defaultdict(list)
    for page in sorted(pages, key=_made, reverse=True):
        found[page.parent].append(page)
    return found


def _job_here(directory: Path, pages: list[Path]) -> JobHere:
    """What these pages tell. One that tells nothing is as old as its file."""
    ages, starts = [], []
    for path in pages:
        page = read_page(path)
        if page is None or page.boot_id != process.boot_id():
            ages.append(time.time() - _changed(path))
            continue
        started = process.started(page.header.start_time)
        if started <= time.time():  # of a damaged page, it may be any number
            starts.append(started)
        ages.append(0.0 if page.is_alive else time.monotonic() - page.header.heartbeat_ns / 1e9)
    script = next(filter(None, map(script_file.read, pages)), "")
    return JobHere(directory, script, min(starts, default=None), max(0.0, min(ages)))


def _no_job(directory: Path | None) -> FileNotFoundError:
    message = (
        "no job with the probe; start one with torchrun ARGS -m tensorwire_job train.py, which takes "
        "seconds until it can be seen (its log says so if the probe is off), or name the directory of one that runs, "
        "or ran, on this machine (--dir)"
    )
    return FileNotFoundError(errno.ENOENT, message, str(root_of(directory)))


def _made(page: Path) -> float:
    """When a rank has made its page. The script's name beside it is written once; a file system on a disk takes what a
    rank writes to a mapped page for changes of the page."""
    return _changed(script_file.script_path(page)) or _changed(page)


def _changed(page: Path) -> float:
    try:
        return page.lstat().st_ctime
    except FileNotFoundError:  # swept meanwhile
        return 0.0
