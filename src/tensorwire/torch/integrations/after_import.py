"""Do something once another package has been imported, without importing it.

Transformers takes a second or two to import, which a program that only uses PyTorch should not pay, and it finds no
quantizer that is not registered. The registration waits on `sys.meta_path`, Python's own place for such things.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def after_import(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Call `action` when module `name` has been imported: at once if it has been, else once its own code has run.

    Returns:
        What forgets the action, if it was not called yet.
    """
    hook = _ImportHook(name, action)
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, hook)
    return hook.forget


class _ImportHook(MetaPathFinder, Loader):
    """Finds one module as the other finders do, and loads it as its own loader does. Then it takes the action."""

    _loader: Loader

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def forget(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action()
