"""Makes the probe of all that is forked from here look several times as often and wait so much less before it reads
torch's recorder, which it may do for a larger share of the time: with its own times a test of it would wait for the
most part. The order of them all stays. Scripts say in units of OPEN_SECONDS how long something was open.
"""

from __future__ import annotations

from typing import Any

from tensorwire_job.rank import calls, flight_recorder, messages, probe

OPEN_SECONDS = 0.25


def _set(module: Any, name: str, seconds: float) -> None:
    assert seconds < getattr(module, name), name
    setattr(module, name, seconds)


_set(probe, "HEARTBEAT_SECONDS", 0.05)
_set(flight_recorder, "OPEN_SECONDS", OPEN_SECONDS)
_set(messages, "OPEN_SECONDS", OPEN_SECONDS)
_set(flight_recorder, "_IDLE_SECONDS", 0.6)
_set(calls, "STILL_SECONDS", 0.4)
flight_recorder._RING_SHARE *= 5
calls.SHARE *= 5  # type: ignore[misc]
