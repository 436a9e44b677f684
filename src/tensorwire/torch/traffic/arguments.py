"""Arguments of another type than the one that was asked for."""

from __future__ import annotations

from numbers import Integral, Real


def expect_integer(what: str, found: object) -> None:
    _expect(what, found, Integral, "an integer")


def expect_number(what: str, found: object) -> None:
    _expect(what, found, Real, "a number")


def _expect(what: str, found: object, kind: type, name: str) -> None:
    if not isinstance(found, kind) or isinstance(found, bool):
        raise TypeError(f"expected {what} to be {name}, got {found!r}")
