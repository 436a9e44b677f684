"""What callers give, looked at before anything is read of it."""

from __future__ import annotations

from typing import Any

import torch

from ....errors import UnsupportedTensorError


def listed(name: str, given: Any) -> list[torch.Tensor]:
    """The tensors that a caller gives in a sequence.

    Raises:
        TypeError: it is one tensor, whose rows or numbers a loop would take, or holds something else.
        UnsupportedTensorError: as `check_tensor`.
    """
    if isinstance(given, torch.Tensor):
        raise TypeError(f"expected a list of tensors as {name}, got a tensor; give [tensor], or list(tensor) for rows")
    found = list(given)
    for number, each in enumerate(found):
        check_tensor(f"{name}[{number}]", each)
    return found


def check_tensor(name: str, given: Any) -> None:
    """Raise TypeError unless it is a tensor, UnsupportedTensorError if torch changes its words lazily."""
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"expected a tensor of torch as {name}, got {type(given).__name__}")
    if given.is_neg() or given.is_conj():
        raise UnsupportedTensorError(
            f"expected a tensor that holds its values as {name}, got one that torch negates or conjugates lazily",
            advice="give tensor.resolve_neg(), or tensor.resolve_conj()",
        )
