"""What bandwidth and instructions allow: the smaller of two rates. It knows nothing of latency, caches and launches."""

from __future__ import annotations

from typing import Any

INSTRUCTIONS = {"fast": 19.0, "enec": 17.4, "resident": 13.7}
"""A word, to decode, of the Triton kernels that were measured: counted in their machine code for sm_90."""
_SLOTS_USED = (0.5, 0.7)
_WORD_NBYTES = 2
_LANES, _HERTZ = 128, 1.7e9


def modelled(profile: str, ratio: float, device: dict[str, Any]) -> list[float]:
    """TB/s of output, least and most, or one number; none of what is no profile. `device` is as results have it."""
    if profile not in INSTRUCTIONS:
        return []
    by_memory = device["copy"] / (1 + 1 / ratio)
    slots = device["processors"] * _LANES * _HERTZ
    by_instructions = [used * slots / INSTRUCTIONS[profile] * _WORD_NBYTES for used in _SLOTS_USED]
    return list(dict.fromkeys(min(by_memory, each) / 1e12 for each in by_instructions))
