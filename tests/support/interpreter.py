"""Triton's interpreter without what it does over and over: half of its time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def hurry(monkeypatch: pytest.MonkeyPatch, *, overflows: bool) -> None:
    """The language is made one for tensors on the CPU at each launch, but no more at each call of a function in it.
    `overflows`: whether sums and products of integers are computed once more in 64 bits, to see that they fit."""
    from triton.runtime import interpreter

    patch, launched = interpreter._patch_lang, []

    def patch_once(function: Any) -> Any:
        if launched:
            return None
        scope = patch(function)
        if scope is None:  # an older Triton, which leaves it so
            return None
        launched.append(function)
        restore = scope.restore

        def restored() -> None:
            launched.clear()
            restore()

        scope.restore = restored
        return scope

    monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
    builder = interpreter.interpreter_builder
    if hasattr(builder.options, "sanitize_overflow"):
        options = dataclasses.replace(builder.options, sanitize_overflow=overflows)
        monkeypatch.setattr(builder, "options", options)
