"""The rules that decide how far a finding can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tensorwire_job.confidence import Basis, confidence_of
from tensorwire_job.model import Confidence

if TYPE_CHECKING:
    from tensorwire_job.model import Code


@pytest.mark.parametrize(
    ("basis", "whole", "incomplete"),
    [(Basis.STATE, "high", "medium"), (Basis.COMPARISON, "medium", "low"), (Basis.REMAINDER, "low", "low")],
)
def test_what_is_out_of_view_costs_one_level(basis: Basis, whole: str, incomplete: str) -> None:
    assert confidence_of("TW-H1", basis, [1], is_incomplete=False) == whole
    assert confidence_of("TW-H1", basis, [1], is_incomplete=True) == incomplete


@pytest.mark.parametrize(("code", "suspects"), [("TW-UNKNOWN", [1]), ("TW-H3", [])])
def test_who_names_no_rank_or_no_cause_is_never_sure(code: Code, suspects: list[int]) -> None:
    assert confidence_of(code, Basis.STATE, suspects, is_incomplete=False) == "low"


@pytest.mark.parametrize(("basis", "level"), [(Basis.STATE, "medium"), (Basis.COMPARISON, "medium")])
def test_who_names_sides_alone_is_not_sure_of_a_rank(basis: Basis, level: str) -> None:
    assert confidence_of("TW-H2", basis, [], [[0], [1]], is_incomplete=False) == level
    assert confidence_of("TW-H2", basis, [], [[0], [1]], is_incomplete=True) == "low"
    assert confidence_of("TW-UNKNOWN", basis, [], [[0], [1]], is_incomplete=False) == "low"


def test_the_highest_comes_first() -> None:
    assert sorted(["low", "high", "medium"], key=lambda level: Confidence(level).order) == ["high", "medium", "low"]
    assert f"{Confidence.HIGH}" == str(Confidence.HIGH) == "high"
