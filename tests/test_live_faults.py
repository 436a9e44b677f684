"""A few faults in real jobs of four ranks on gloo; `make faults` injects all of them, many times."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.diagnosis.faults.cases import BY_NAME
from benchmarks.diagnosis.faults.run import Stage

pytestmark = pytest.mark.xdist_group("live faults")  # one job at a time

# The slow one makes the others wait a hundred times as long as in good times.
FAULTS = [
    ("s1-sleep", 2),
    ("h1-sleep", 1),
    ("h1-gil", 3),
    ("h2-operation", 2),
    ("h2-order", 0),
    ("h2-size", 1),
    ("h3-sigstop", 2),
    ("lost-exception", 3),
]


@pytest.fixture(scope="module")
def stage():
    with Stage() as stage:
        yield stage


@pytest.mark.parametrize(("name", "rank"), FAULTS)
def test_the_fault_is_named(stage, name, rank):
    outcome = stage.run(BY_NAME[name], rank)
    assert outcome.wrong == ""
