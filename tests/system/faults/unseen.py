"""Faults thought of from the docs alone, each another mechanism than any in cases.py and known.py.

They were run before anyone tuned the analyzer to them: the results keep those first runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .variants import Variant

UNSEEN: list[Variant] = []
