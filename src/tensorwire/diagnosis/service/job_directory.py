"""Which directory is the job's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..page.directory import is_ours, root_directory


def root_of(directory: Path | None) -> Path:
    """Where to look for pages: the given directory, or the one that probes use."""
    given = os.environ.get("TENSORWIRE_PROBE_DIR")
    return directory or (Path(given) if given else root_directory())


def find_directory(directory: Path | None) -> Path | None:
    """The directory with the newest page; None if there is none, or somebody else may have made it."""
    root = root_of(directory)
    if root == root_directory() and not is_ours(root):
        return None
    pages = [*root.glob("rank-*.page"), *(() if directory else root.glob("*/rank-*.page"))]
    return max(pages, key=_changed).parent if pages else None


def job_directory(directory: Path | None) -> Path:
    """The directory of the newest job, or the given one.

    Raises:
        FileNotFoundError: no rank has a page there.
    """
    found = find_directory(directory)
    if found is None:
        message = (
            "no job with the probe; start one with torchrun ARGS -m tensorwire.probe train.py, or name the directory "
            "of one that runs, or ran, on this machine (--dir)"
        )
        raise FileNotFoundError(errno.ENOENT, message, str(root_of(directory)))
    return found


def _changed(page: Path) -> float:
    try:
        return page.lstat().st_ctime
    except FileNotFoundError:  # swept meanwhile
        return 0.0
