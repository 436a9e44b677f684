"""Whether a file is compressed: a look at its first bytes, and only if these are a safetensors file's at its header."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import FormatError
from ...files.header import MAX_HEADER_NBYTES
from ...files.names import OUR_NAME
from ...files.reader import StoredFile, may_be_header

NO_BASE = "run tensorwire decompress DELTA DST --base OLD first, and load DST: this call takes no base"
"""What to do about a delta."""


def header_in(read: Callable[[int, int], bytes]) -> bytes:
    """The header of what may be a compressed file; nothing of any other. `read` gets an offset and a size."""
    prefix = read(0, 9)
    length = int.from_bytes(prefix[:8], "little")
    if prefix[8:] != b"{" or length > MAX_HEADER_NBYTES:
        return b""
    header = read(8, length)
    return header if may_be_header(header) else b""


def is_ours(path: Any) -> bool:
    """Whether a path leads to a compressed file, whole or damaged. What is no path does not."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, TypeError, ValueError):
        return False
    try:
        header = header_in(lambda offset, nbytes: os.pread(number, nbytes, offset))
    except OSError:
        return False
    finally:
        os.close(number)
    if not header:
        return False
    try:
        with StoredFile(Path(os.fsdecode(path))) as stored:
            return stored.compressed
    except FormatError:
        return OUR_NAME in header
