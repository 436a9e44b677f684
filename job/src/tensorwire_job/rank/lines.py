"""The line of the script that made a call."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

_MAX_DEPTH: Final = 40
_OWN: Final = f"{Path(__file__).resolve().parents[1]}/"
_known: dict[str, bool] = {}


class Line(NamedTuple):
    """A line that was reached."""

    code: CodeType
    number: int


def caller() -> Line | None:
    """The innermost line of this thread that is not torch's, or this package's own."""
    call: FrameType | None = sys._getframe(1)  # a Python frame
    for _ in range(_MAX_DEPTH):
        if call is None:
            return None
        if not is_torch(call.f_code.co_filename):
            return Line(call.f_code, call.f_lineno)
        call = call.f_back
    return None


def is_torch(filename: str) -> bool:
    """Whether a file is torch's or the probe's own, which no script's line is in."""
    known = _known.get(filename)
    if known is None:
        torch = f"{Path(sys.modules['torch'].__file__ or '').parent}/"
        known = _known[filename] = filename.startswith((torch, _OWN, "<"))
    return known
