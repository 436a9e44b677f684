"""Cases of a family share an item, and each of them is tried and named all the same."""

from __future__ import annotations

import pytest

from tests.support.families import each_of


def test_every_case_is_tried_and_those_that_fail_are_named() -> None:
    tried = []

    @each_of(["a1", "b1", "a2", "b2"], family=lambda case: case[0], name=str)
    def test(case: str, most: str) -> None:
        tried.append(case)
        assert case < most
        if case == "b1":
            pytest.fail("a failure of pytest")
        if case == "b2":
            pytest.skip("guards nothing")

    assert [list(mark.args[1]) for mark in test.pytestmark] == [["a", "b"]]
    test("a", most="c")
    for family, most, message in (("a", "a2", "1 of 2: a2"), ("b", "c", "2 of 2: b1, b2")):
        with pytest.raises(AssertionError, match=message):
            test(family, most=most)
    assert tried == ["a1", "a2", "a1", "a2", "b1", "b2"]
