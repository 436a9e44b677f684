"""In which order files have their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def in_order(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by their names, so that a file does not depend on the order in which they are given."""
    return dict(sorted(tensors.items(), key=lambda item: str(item[0])))
