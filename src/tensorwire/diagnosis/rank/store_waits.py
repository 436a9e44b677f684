"""Shows on the stack that a thread waits for a key of a store.

The stores of torch wait in C, where a stack shows only who called them. Their methods that wait pass a function here,
which activity.py looks for.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_METHODS: Final = ("get", "multi_get", "wait")
_STORES: Final = ("PrefixStore", "TCPStore")  # those of a job; the base class belongs to stores that users write too


def show() -> None:
    """Have the stores' methods that wait pass this module, where they do not yet."""
    import torch.distributed

    for store in (getattr(torch.distributed, name) for name in _STORES):
        for name in _METHODS:
            if name not in vars(store):
                setattr(store, name, _shown(getattr(store, name)))


def _shown(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def wait_in_store(*arguments: Any, **options: Any) -> Any:
        return method(*arguments, **options)

    return wait_in_store
