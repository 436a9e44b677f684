"""What job/benchmarks/results says, in the words that a claim about it needs."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from job.benchmarks import RESULTS
from job.tests.faults.cases import BY_NAME
from job.tests.faults.variant_page import by_kind, false_looks, of_stage, with_faults
from tensorwire_job.model import Confidence


def _load(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


class Faults:
    """The runs of `make -C job faults`."""

    @cached_property
    def runs(self) -> list[dict[str, Any]]:
        return list(_load("diagnosis-faults.json")["runs"])

    def count(self, *kinds: str) -> tuple[int, int]:
        """(right, all) of the cases of these kinds (lost, hang, slow, none); of all cases if none is named."""
        found = [run for run in self.runs if not kinds or BY_NAME[run["case"]].kind in kinds]
        return sum(not run["wrong"] for run in found), len(found)

    def share(self, kind: str) -> str:
        """The count of one kind, as `319 of 320`."""
        right, runs = self.count(kind)
        return f"{right} of {runs}"


_SETS = (  # as job/docs/limits.md calls groups and stages
    ("unseen, the first time", "unseen", "first"),
    ("unseen, after mending", "unseen", "mended"),
    ("a second unseen set, the first time", "second", "first"),
    ("the second set, after mending", "second", "mended"),
    ("a third unseen set, the first time", "third", "first"),
    ("the third set, after mending", "third", "mended"),
    ("after the fourth set", "fourth", "mended"),
    ("a fifth unseen set, the first time", "fifth", "first"),
    ("known before", "known", "mended"),
)


class Variants:
    """The runs of variants of `make -C job faults`."""

    @cached_property
    def _runs(self) -> list[dict[str, Any]]:
        return list(_load("diagnosis-unseen.json")["runs"])

    def _of(self, group: str, stage: str) -> list[dict[str, Any]]:
        return of_stage(self._runs, group, stage)

    def num_jobs(self, group: str, stage: str) -> int:
        return len({run["case"] for run in self._of(group, stage)})

    def share(self, group: str, stage: str, key: str) -> str:
        """In how many of the runs with a fault something ("found", "rank_right", "class_right") holds."""
        runs = with_faults(self._of(group, stage))
        return f"{sum(run[key] for run in runs)} of {len(runs)}"

    def table(self) -> list[str]:
        """For each set in how many runs the fault was found, the rank right and the class."""
        keys = ("found", "rank_right", "class_right")
        return [
            f"| {title} | {' | '.join(self.share(group, stage, key) for key in keys)} |"
            for title, group, stage in _SETS
        ]

    def after_mending(self, key: str, *groups: str) -> str:
        """In how many of the runs of these sets something holds, of those with a fault that have an answer."""
        runs = with_faults([run for group in groups for run in self._of(group, "mended")])
        known = [run[key] for run in runs if run.get(key) is not None]
        return f"{sum(known)} of {len(known)}"

    def false_looks(self, group: str = "healthy", stage: str = "mended") -> str:
        """How many looks at jobs with nothing wrong had a finding."""
        return false_looks(with_faults(self._of(group, stage), are=False))

    def new_faults(self, code: str, confidence: str) -> str:
        """In how many unseen faults the suspects were right the first time, by code and confidence."""
        return "{} of {}".format(*by_kind(self._runs)[code][Confidence(confidence)])

    def high_confidence(self, *columns: tuple[str, str]) -> str:
        """How many verdicts of high confidence were right, in these groups and stages."""
        told = [run["levels"].get("high", [0, 0]) for column in columns for run in self._of(*column)]
        return f"{sum(right for right, _ in told)} of {sum(number for _, number in told)}"


class Stacks:
    """The runs of `python -m job.tests.faults --stacks`."""

    @cached_property
    def _runs(self) -> list[dict[str, Any]]:
        return list(_load("diagnosis-stacks.json")["runs"])

    def share(self, key: str) -> str:
        """In how many of the runs something holds ("rank_right", "misnamed", "holds")."""
        return f"{sum(run[key] for run in self._runs)} of {len(self._runs)}"


faults = Faults()
stacks = Stacks()
variants = Variants()
probe: dict[str, Any] = _load("probe.json")
