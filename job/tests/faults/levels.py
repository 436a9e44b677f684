"""How many verdicts of each confidence are right: in runs, and in recordings that are analyzed again."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.environment import ROOT
from tensorwire_job.model import Confidence
from tensorwire_job.service.recording import replay

from .cases import BY_NAME
from .judge import is_expected
from .watch import is_finding

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tensorwire_job.model import Finding

    from .cases import Case

RECORDINGS = ROOT / "job" / "tests" / "recordings"


def levels_of(case: Case, rank: int, findings: Iterable[Finding]) -> dict[str, bool]:
    """Each confidence that a run's verdicts had, and whether all verdicts of that confidence were right."""
    right: dict[str, bool] = {}
    for finding in filter(is_finding, findings):
        level = finding.confidence.value
        right[level] = right.get(level, True) and bool(case.code) and is_expected(case, rank, finding)
    return right


def count(runs: Iterable[dict[str, bool]]) -> dict[str, list[int]]:
    """By confidence: in how many runs the verdicts were right, and how many runs had any."""
    told: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for run in runs:
        told.update(run.keys())
        right.update(level for level, is_right in run.items() if is_right)
    return {level.value: [right[level.value], told[level.value]] for level in Confidence}


def of_recordings(folder: Path = RECORDINGS) -> dict[str, list[int]]:
    """`count` of the recordings of all cases, analyzed by the analyzer of now."""
    return count(_of_recording(path) for path in sorted(folder.glob("*.jsonl.gz")))


def _of_recording(path: Path) -> dict[str, bool]:
    match = re.fullmatch(r"(.+)-(\d)\.jsonl\.gz", path.name)
    assert match is not None, path
    case = BY_NAME[match[1]]
    return levels_of(case, int(match[2]), (f for _, findings in replay(path, case.thresholds) for f in findings))
