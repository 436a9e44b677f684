"""Recordings of variants of faults, through the analyzer: what is said of each must not change unnoticed.

`python -m job.tests.faults --variants all --record job/tests/recordings/variants` makes them; the number in a
name is the rank that the fault befell. A recording of a job that a signal ended is of its end alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from job.tests.faults.cases import BY_NAME, GROUPS
from job.tests.faults.matrix_page import RECORDINGS as FOLDER
from job.tests.faults.recorded import judgement, subject

if TYPE_CHECKING:
    from pathlib import Path

    from _pytest.mark import ParameterSet

RECORDINGS = sorted(FOLDER.glob("variants/*.jsonl.gz"))

# Findings that are known to be wrong. A change that mends one takes it out of here.
WRONG = {
    "gather-of-float64": "gloo aborts the partner, which is named as lost",
    "join-of-some": "gloo aborts a rank that receives too much, which is named as lost",
    "local-rank": "by which number a rank joins is not seen",
    "micro-batches": "both ends of the messages that do not fit are named, and no culprit",
    "resume-of-some": "only the calls of two ranks are known, and both are named",
    "token-counts": "gloo aborts the rank that receives, which is named as lost",
    "uncalled-norm": "gloo aborts a rank that receives too much, which is named as lost",
    "world-size": "a rank that was never started is named as not in view",
    "wrong-tag": "the ends of a message whose tags differ are both named, and no culprit",
}


# What these take through the analyzer, line by line, is all that any recording takes.
QUICK = {
    "all-stopped", "anomaly-mode", "bursts", "closed-descriptors", "ctrl-c-hang", "ctrl-c-healthy",
    "ctrl-c-mesh-leave-early", "debugger", "dtype-of-fewer-bytes", "early-vote", "exception-in-a-hook",
    "frozen-store", "gather-of-float64", "hung-up", "late-stage", "leaves-by-agreement", "local-rank", "logger-start",
    "longer-sequences", "micro-batches", "missed-gather", "missing-module", "preempted", "re-exec", "resume-of-some",
    "ring-of-sends", "save-of-all-ranks", "short-timeout", "sigterm-pipeline", "slow-in-mesh", "stuck-before-init",
    "uneven-then-barrier", "unset-key", "waiting-evaluator", "world-size", "wrong-mesh-axis", "wrong-neighbour",
    "wrong-tag",
}  # fmt: skip


def parameter(path: Path) -> ParameterSet:
    is_quick = subject(path)[0].name in QUICK
    return pytest.param(path, marks=() if is_quick else pytest.mark.slow, id=path.name.partition(".")[0])


@pytest.mark.parametrize("path", [parameter(path) for path in RECORDINGS])
def test_the_fault_is_named(path: Path) -> None:
    name = subject(path)[0].name
    judged = judgement(path)
    if name in WRONG:
        assert not judged.right, f"{name} is right now: take it out of WRONG"
        pytest.xfail(WRONG[name])
    assert judged.right, f"{judged.said}: {judged.wrong}"


def test_every_known_fault_has_a_recording() -> None:
    recorded = {subject(path)[0].name for path in RECORDINGS}
    assert {variant.name for variant in GROUPS["known"]} <= recorded <= set(BY_NAME)
    assert QUICK | set(WRONG) <= recorded
