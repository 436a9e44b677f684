"""Calls of some functions, and their CPU seconds, while something runs."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from tensorwire.codec.frame import core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STAGES: dict[str, tuple[Any, str]] = {
    "read the base": (os, "preadv"),
    "decode": (core, "decode"),
    "hash": (core, "hash_leaves"),
    "write": (os, "pwrite"),
    "wait for the disk": (os, "fsync"),
}
DECODERS: dict[str, tuple[Any, str]] = {name: (core, name) for name in ("decode", "decode_and_hash", "block_infos")}


class Spent:
    def __init__(self, own: Callable[..., Any]) -> None:
        self._own, self.calls, self.seconds = own, 0, 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return self._own(*arguments, **options)
        finally:
            self.calls += 1
            self.seconds += time.process_time() - began


@contextmanager
def spent(functions: dict[str, tuple[Any, str]]) -> Iterator[dict[str, Spent]]:
    with ExitStack() as stack:
        found = {name: Spent(getattr(*place)) for name, place in functions.items()}
        for name, (module, attribute) in functions.items():
            stack.enter_context(mock.patch.object(module, attribute, found[name]))
        yield found
