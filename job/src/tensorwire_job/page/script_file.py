"""The file with the name of a rank's script, beside its page: the word that a person knows the job by."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_MAX_NBYTES: Final = 255  # of a file's name


def script_path(page: Path) -> Path:
    """Where the name of the script of the rank of a page is."""
    return page.with_suffix(".script")


def write(page: Path, script: str) -> None:
    """Put the name of the script, or of the module, beside the page of its rank. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(script_path(page), flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.fsencode(Path(script).name)[:_MAX_NBYTES])


def read(page: Path) -> str:
    """The name; "" where there is none."""
    try:
        descriptor = os.open(script_path(page), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            return (file.read(_MAX_NBYTES) or b"").decode("utf-8", "replace")  # None: of an empty pipe
    except OSError:
        return ""
