"""Sections that fail in all the ways in which those of a device can."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.device.runner import Row, Section

if TYPE_CHECKING:
    from collections.abc import Generator


class FakeBench:
    """A device that is unusable once `broken` is set."""

    deadline = 0.0
    broken = False

    def settle(self) -> None:
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")


def _works(bench: FakeBench) -> Generator[Row, None, None]:
    yield {"what": "one", "number": 1.0}
    yield {"what": "two", "left": bench.deadline > time.monotonic()}


def _raises(_: FakeBench) -> Generator[Row, None, None]:
    yield {"what": "kept"}
    raise ValueError("words that say why")


def _breaks(bench: FakeBench) -> Generator[Row, None, None]:
    yield {"what": "kept"}
    bench.broken = True
    raise RuntimeError("an illegal memory access was encountered")


def _overruns(bench: FakeBench) -> Generator[Row, None, None]:
    yield {"what": "in time"}
    while time.monotonic() <= bench.deadline:
        time.sleep(0.01)
    yield {"what": "late"}
    yield {"what": "never"}


def _goes_on(_: FakeBench) -> Generator[Row, None, None]:
    for number in range(10_000):
        yield {"what": str(number)}
        time.sleep(0.02)


def _hangs(_: FakeBench) -> Generator[Row, None, None]:
    yield {"what": "kept"}
    time.sleep(600)


def _dies(_: FakeBench) -> Generator[Row, None, None]:
    yield {"what": "kept"}
    os.kill(os.getpid(), signal.SIGKILL)


_RUNS = {
    "works": _works, "raises": _raises, "breaks": _breaks, "overruns": _overruns, "goes_on": _goes_on, "hangs": _hangs,
    "dies": _dies,
}  # fmt: skip
_SECONDS = {"overruns": 0.5, "hangs": 1.0}
_ENOUGH_SECONDS = 300.0
"""For a process that gets no time for a while."""


def sections(*names: str) -> list[Section]:
    """These; a name may have more behind a hyphen."""
    columns = (("what", "what", ""), ("number", "number", ".1f"))
    return [
        Section(
            name,
            _SECONDS.get(name, _ENOUGH_SECONDS),
            f"Does {name} work?",
            "It is made up.",
            columns,
            _RUNS[name.partition("-")[0]],
        )
        for name in names
    ]
