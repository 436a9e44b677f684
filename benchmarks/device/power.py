"""The clock and the power of a GPU while it works: a ratio of two times is worth little where they have changed."""

from __future__ import annotations

import subprocess

import torch

_ASK = ("nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits")


def clock_and_power() -> dict[str, float]:
    """MHz of the processors and watts; nothing where the driver does not tell."""
    try:
        return {"clock": float(torch.cuda.clock_rate()), "watts": torch.cuda.power_draw() / 1e3}
    except Exception:  # Python's package for NVML is missing, or NVML itself
        return _by_command()


def _by_command() -> dict[str, float]:
    try:
        line = subprocess.run(_ASK, capture_output=True, text=True, check=True, timeout=5).stdout.splitlines()[0]
        clock, watts = (float(each) for each in line.split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
    return {"clock": clock, "watts": watts}
