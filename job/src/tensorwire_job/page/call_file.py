"""The file of a rank's last calls, beside its page. It is replaced as a whole, so that no reader sees half of one.

The file is JSON: `ns`, the time of the monotonic clock at which the calls were read, and `calls`, the newest last. Each
is [group, sequence, name, dtype, elements, root, signature, line, counts]; :class:`tensorwire_job.model.Call` has
their meaning.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..model import IN_THREAD, MAX_CALLS, MAX_COUNTS, Call, Operation

_MAX_NBYTES: Final = 1 << 20
_MAX_TEXT: Final = 64
_TYPES: Final = [str, int, str, str, int, int, int, int, list]
_MAX_VALUE: Final = 1 << 62


def call_path(page: Path) -> Path:
    """Where the calls of the rank of a page are."""
    return page.with_suffix(".calls")


def write(page: Path, calls: Sequence[Call]) -> None:
    """Put the last calls of a rank beside its page. Raises OSError."""
    text = json.dumps({"ns": time.monotonic_ns(), "calls": [_row(call) for call in calls[-MAX_CALLS:]]})
    path = call_path(page)
    new = path.with_suffix(".calls.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    new.replace(path)


def read(page: Path) -> tuple[int, tuple[Call, ...]] | None:
    """When the calls were read, in nanoseconds, and the calls; None where there are none, or none to be believed."""
    try:
        descriptor = os.open(call_path(page), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(_MAX_NBYTES + 1)
        if len(data) > _MAX_NBYTES:
            return None
        found = json.loads(data)
        ns, rows = found["ns"], found["calls"]
        if type(ns) is not int or not 0 < ns < 2**63 or len(rows) > MAX_CALLS:
            return None
        return ns, tuple(map(_call, rows))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _row(call: Call) -> list[Any]:
    operation = call.operation
    described = operation.name, operation.dtype, operation.numel, operation.root, operation.signature
    return [call.group, operation.sequence, *described, call.line, call.counts[:MAX_COUNTS]]


def _call(row: Any) -> Call:
    if [type(value) for value in row] != _TYPES:
        raise TypeError
    group, sequence, name, dtype, numel, root, signature, line, counts = row
    texts_are_short = all(len(text) <= _MAX_TEXT for text in (group, name, dtype))
    are_known = min(numel, root) >= -1 and max(numel, root) < _MAX_VALUE and 0 <= signature < 1 << 64
    if not (0 < sequence < _MAX_VALUE and texts_are_short and are_known and 0 <= line < 2 * IN_THREAD):
        raise ValueError
    if len(counts) > MAX_COUNTS or not all(type(count) is int and 0 <= count < _MAX_VALUE for count in counts):
        raise ValueError
    return Call(group, Operation(sequence, name, dtype, numel, root, signature), line, tuple(counts))
