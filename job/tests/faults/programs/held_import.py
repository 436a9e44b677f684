"""Training of which one rank imports what torch.compile needs, from storage that does not answer."""

from __future__ import annotations

import importlib.abc
import itertools
import sys
import time
from typing import TYPE_CHECKING

from .common import is_befallen, mark_fault
from .small_training import STEPS_BEFORE, Training, start

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_IMPORTED = "torch._dynamo.symbolic_convert"
_HELD = "torch._dynamo.exc"  # imported by it


class SilentStorage(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == _HELD:
            mark_fault()
            time.sleep(1000.0)
        return None


def main() -> None:
    start()
    training = Training()
    for step in itertools.count():
        training.step()
        if step == STEPS_BEFORE and is_befallen():
            for name in (_IMPORTED, _HELD):  # as if nothing had needed them so far
                sys.modules.pop(name, None)
            sys.meta_path.insert(0, SilentStorage())
            __import__(_IMPORTED)


if __name__ == "__main__":
    main()
