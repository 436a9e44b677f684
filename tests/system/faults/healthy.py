"""Jobs in which nothing is wrong, watched with low gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .variants import Variant

HEALTHY: list[Variant] = []
