"""What calls on a device make once: kept for later calls with the same addresses, and for graphs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from ...._ground.copies import not_copied
from ...frames.turn import is_capturing

if TYPE_CHECKING:
    import torch

_MOST = 16

T = TypeVar("T")


class Kept(Generic[T]):
    """What the last calls made, and what graphs have captured: its launch data are read at each replay. Serves many
    threads at once."""

    __reduce_ex__ = not_copied("addresses on a device", "make the call again")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: OrderedDict[Hashable, T] = OrderedDict()
        self._in_graphs: dict[Hashable, T] = {}

    def find(self, key: Hashable, device: torch.device, make: Callable[[], T]) -> T:
        """What was made for this key, else what `make` makes.

        Raises:
            RuntimeError: a graph is captured, and nothing was made for the key before.
        """
        capturing = is_capturing(device)
        with self._lock:
            found = self._in_graphs.get(key) or self._last.get(key)
            if found is not None and capturing:
                self._in_graphs[key] = found
            if found is None and capturing:
                raise RuntimeError(
                    "expected a call that was made before, with the same tensors, in a graph, got a new one; make it "
                    "once outside of the graph"
                )
        if found is None:
            found = make()
        with self._lock:
            self._last[key] = found
            self._last.move_to_end(key)
            while len(self._last) > _MOST:
                self._last.popitem(last=False)
        return found
