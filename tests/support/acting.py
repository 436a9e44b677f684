"""Functions that act before or after each call of another one, or raise; and operations that are interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def acting(
    patch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[..., object], *, after: bool = False
) -> None:
    """Have each call of a function act with the same arguments, before it is made or after it."""
    call = getattr(owner, name)

    def both(*arguments: Any, **options: Any) -> Any:
        if not after:
            act(*arguments, **options)
        result = call(*arguments, **options)
        if after:
            act(*arguments, **options)
        return result

    patch.setattr(owner, name, both)


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """A function that raises, whatever it is given."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def interrupt(work: Callable[..., object], *arguments: Any, at: str | None = None, **options: Any) -> None:
    """End an operation by its callback of progress: when it comes to a file, or when more than half is done."""

    def progress(done: int, total: int, path: str) -> None:
        if path == at or (at is None and done > total // 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(*arguments, progress=progress, **options)
