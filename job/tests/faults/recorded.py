"""Recordings of jobs with a fault, and what the analyzer of now finds in them."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from tensorwire_job.service.recording import replay

from .cases import BY_NAME
from .verdicts import judge
from .watch import Poll

if TYPE_CHECKING:
    from pathlib import Path

    from .cases import Case
    from .verdicts import Judgement


def subject(path: Path) -> tuple[Case, int]:
    """The case that a recording is of, and the rank that it befell."""
    match = re.fullmatch(r"(.+)-(\d)\.jsonl\.gz", path.name)
    assert match is not None, path
    return BY_NAME[match[1]], int(match[2])


def analyzed(path: Path) -> list[Poll]:
    thresholds = subject(path)[0].thresholds
    return [Poll(observation.time, findings) for observation, findings in replay(path, thresholds)]


polls_of = cache(analyzed)


def judgement(path: Path) -> Judgement:
    case, rank = subject(path)
    polls = polls_of(path)
    if case.ending:
        polls = polls[-1:]  # as one who asks: the answer is what is found in the end
    return judge(case, rank, polls, polls[0].time)
