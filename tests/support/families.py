"""Many cases in few items: pytest takes longer for an item than most cases of the codec's registries take."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


def name_of_family(case: Any) -> str:
    """The first word of a case's name: its kind, or the part of a frame that it is about."""
    return case.name.removeprefix("coding-").split("-")[0]


def _failure(test: Callable[..., None], case: object, arguments: dict[str, Any]) -> BaseException | None:
    try:
        test(case, **arguments)
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # a case that is skipped guards nothing
        return error
    return None


def each_of(
    cases: Sequence[T], family: Callable[[T], str] = name_of_family, name: Callable[[T], str] = lambda case: case.name
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test: its first argument is each case of a family in turn, and a family is an item.

    A case that fails keeps no other one from being tried. The error names all that failed, and shows the first.
    """
    families: dict[str, list[T]] = {}
    for case in cases:
        families.setdefault(family(case), []).append(case)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def every(family: str, **arguments: Any) -> None:
            found = [(case, _failure(test, case, arguments)) for case in families[family]]
            failed = [(name(case), error) for case, error in found if error is not None]
            for _, error in failed[:1]:
                raise AssertionError(f"{len(failed)} of {len(found)}: {', '.join(dict(failed))}") from error

        first, *others = inspect.signature(test).parameters.values()
        signature = inspect.Signature([first.replace(name="family", annotation="str"), *others])
        every.__signature__ = signature  # type: ignore[attr-defined]
        return pytest.mark.parametrize("family", families)(every)

    return decorate
