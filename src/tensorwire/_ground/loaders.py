"""Loaders of tensors that stay compressed. They stand above their caller, so the package enters them here."""

from __future__ import annotations

from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

compressed_loaders: dict[str, Callable[[Any, int | None], Any]] = {}
"""By framework: called with the device, None for the CPU, and with ``resident_nbytes``."""
