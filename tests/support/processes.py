"""Processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

import tensorwire


def bare_python() -> dict[str, str]:
    """An environment in which `python -S`, which starts in no time, finds the package wherever it is installed."""
    return {**os.environ, "PYTHONPATH": str(Path(tensorwire.__file__).parents[1])}
