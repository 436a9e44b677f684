"""What callers give, looked at before anything is read of it."""

from __future__ import annotations

from typing import Any

import torch


def listed(name: str, given: Any) -> list[torch.Tensor]:
    """The tensors that a caller gives in a sequence.

    Raises:
        TypeError: it is one tensor, whose rows or numbers a loop would take, or holds something else.
    """
    if isinstance(given, torch.Tensor):
        raise TypeError(f"expected a list of tensors as {name}, got a tensor; give [tensor], or list(tensor) for rows")
    found = list(given)
    for number, each in enumerate(found):
        check_tensor(f"{name}[{number}]", each)
    return found


def check_tensor(name: str, given: Any) -> None:
    """Raise TypeError unless it is a tensor."""
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"expected a tensor of torch as {name}, got {type(given).__name__}")
