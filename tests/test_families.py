"""Cases of a family share an item, and each of them is tried and named all the same."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import pytest

from tests.support.families import each_of


class Case(NamedTuple):
    name: str
    number: int


CASES = [Case("odd-1", 1), Case("even-2", 2), Case("odd-3", 3), Case("coding-even-4", 4)]


def test_every_case_is_tried_and_those_that_fail_are_named() -> None:
    tried = []

    @each_of(CASES)
    def fails(case: Case, most: int) -> None:
        tried.append(case.number)
        if case.number == 2:
            pytest.fail("a failure of pytest")
        assert case.number < most

    assert [*inspect.signature(fails).parameters] == ["family", "most"]
    assert [mark.args for mark in fails.pytestmark] == [("family", {"odd": CASES[::2], "even": CASES[1::2]})]
    with pytest.raises(AssertionError, match="2 of 2: odd-1, odd-3"):
        fails("odd", most=0)
    with pytest.raises(AssertionError, match="1 of 2: even-2") as raised:
        fails("even", most=9)
    assert "a failure of pytest" in str(raised.value.__cause__)
    fails("odd", most=9)
    assert tried == [1, 3, 2, 4, 1, 3]
