"""What goes wrong in a job, and what has to be said of it: cases.csv, a row for each.

Most cases, the variants, are training programs of their own, which the fault befalls at a known moment. A program is
written as a user writes it, and knows nothing of the probe: a function of a module in programs, called in each rank.
programs/common.py tells it whom the fault befalls. The sets:

- matrix: faults that injections.py makes in the training of job.py, and what only looks like one. A case that mends
  leaves the job as it was, and the next one has it; the others have a job of their own. These alone are judged
  strictly: everything that is found from the fault on has to be right.
- known: an earlier analyzer was given them once, when the matrix did not have them.
- unseen: thought of from the docs alone, each another mechanism than any of the matrix and of the known ones. They were
  run before anyone tuned the analyzer to them: the results keep those first runs. What is right was written before
  them, from job/docs/findings.md.
- second: likewise, each another mechanism than any in the sets before.
- third: after reports of jobs that hung, crawled or lost a rank, whose cause the thread found. The reports are issues
  and pull requests of public repositories; the docstring of each case in its program names its own. They were taken as
  a search gave them, but for those whose mechanism a set before has, and those that ranks on CPUs, on one machine and
  on gloo, cannot show. What is right was written before they were run.
- fourth: faults of which a fourth set was named wrongly, one or more for each cause. That set is not in the project.
  The analyzer was mended with them. Each is judged as long as the job lives and once it is dead.
- fifth: fifteen jobs that hung, or lost a rank, after reports in public issue trackers. Their author had read neither
  the analyzer nor job/docs/method.md, and committed them before any ran with its fault. Before that, each was run
  without it only (TW_FAULTS_RANK=-1), to see that it trains. What is right was written with the program: the rank that
  does another thing than its own program and the other ranks have it do, or two sides where no evidence tells them
  apart. Where a rank goes on to wait in another place than the others' group, both classes of hangs are right.
- healthy: jobs in which nothing is wrong, watched with low gates. What a rank does alone, R does.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tensorwire_job.model import ASKED, Thresholds

from . import injections
from .training_job import WORLD, WORLD_SIZE
from .watch import THRESHOLDS

GATES = Thresholds(hang_seconds=5.0, slow_seconds=5.0, lost_seconds=2.0)  # of variants
MATRIX = "matrix"
Ranks = Callable[[int], list[int]]
Kind = Literal["lost", "hang", "slow", "none"]


def _alone(rank: int) -> list[int]:
    return [rank]


_RANKS: dict[str, Ranks] = {  # in the words of the table, of the rank that a fault befalls
    "none": lambda _: [],
    "all": lambda _: WORLD,
    "others": lambda rank: [each for each in WORLD if each != rank],
    "the other two": lambda rank: [each for each in WORLD if (each - rank) % WORLD_SIZE > 1],
    "R and the next": lambda rank: sorted((rank, (rank + 1) % WORLD_SIZE)),
    "R and the opposite": lambda rank: sorted((rank, (rank + 2) % WORLD_SIZE)),
    "R and the last": lambda rank: [0, 1] if rank == 0 else [rank - 1, rank],  # stages that wait for each other
    "R and its partner": lambda rank: sorted((rank, rank ^ 1)),  # in a row, the tp group, of a 2 x 2 mesh
    "R and its replica": lambda rank: sorted((rank, rank ^ 2)),  # in a column, the dp group
    "not started": lambda _: [WORLD_SIZE],
}


@dataclass(frozen=True)
class Ending:
    """The ranks get a signal so long after the fault; what `diagnose` says of the dead job is judged."""

    name: str  # of the signal
    seconds: float
    gap: float = 0.0  # seconds between the signals to two ranks


@dataclass(frozen=True)
class Case:
    """A fault, or something that only looks like one. The job lives, unless the case has an `ending`."""

    name: str
    about: str  # what goes wrong, in one sentence
    codes: tuple[str, ...] = ()  # classes that are right; () where nothing may be found
    program: str = ""  # of its own; "": that of job.py, which `inject` befalls
    function: str = ""  # of the program or of injections.py, and its arguments
    suspects: Ranks = _alone  # who is right
    tie: Ranks | None = None  # suspects that are an honest tie: found, but not right
    sides: tuple[Ranks, ...] = ()  # that have to be told, in the matrix
    ranks: tuple[int, ...] = tuple(WORLD)  # that it befalls, in turn
    seconds: float = 20.0  # to look on from the fault
    ending: Ending | None = None
    notice: str = ""  # words that a notice must have; in the matrix, one about the rank that the case befalls
    stack: str = ""  # a function that the suspect's stack has to show
    evidence: str = ""  # what a fact has to say
    needs: str = ""  # as in needs.py
    hang_seconds: float = THRESHOLDS.hang_seconds  # longer where one loss after another may hold up one operation
    mends: bool = False  # the job goes on afterwards
    settings: dict[str, Any] = field(default_factory=dict)  # of job.py
    environment: dict[str, str] = field(default_factory=dict)
    launcher: str = ""  # that starts the ranks, "torchrun" or "accelerate"; "": they are started one by one
    before: str = ""  # what was said of it before it was in this table, and how often that was right

    @property
    def expected(self) -> str:
        """In words, with R for the rank that it befalls."""
        if not self.codes:
            return "nothing, and a notice" if self.notice else "nothing"
        ranks = sorted({says(self.suspects(rank), rank) for rank in self.ranks})
        return f"{' or '.join(self.codes)} {' or '.join(ranks)}".rstrip()

    @property
    def kind(self) -> Kind:
        if not self.codes:
            return "none"
        return {"TW-H": "hang", "TW-S": "slow"}.get(self.codes[0][:4], "lost")  # type: ignore[return-value]

    @property
    def thresholds(self) -> Thresholds:
        if self.program:
            return ASKED if self.ending else GATES
        return replace(THRESHOLDS, hang_seconds=self.hang_seconds)

    @property
    def uses_network(self) -> bool:
        return self.needs in ("links", "loss")

    @property
    def job(self) -> object:
        """The job it needs: cases with the same one can have it one after another."""
        return self.needs, self.hang_seconds, json.dumps(self.settings, sort_keys=True)

    def inject(self, context: injections.FaultContext) -> None:
        """Have the case befall the training of job.py."""
        if self.function:
            name, *arguments = self.function.split()
            getattr(injections, name)(context, *map(_value, arguments))


def says(suspects: list[int], rank: int) -> str:
    """Suspects in words, with R for the rank that the fault befell."""
    return ", ".join("R" if each == rank else str(each) for each in suspects)


def _value(text: str) -> Any:
    return json.loads(text) if text[0].isdigit() else text


def _ending(text: str) -> Ending:
    name, *seconds = text.split()
    return Ending(name, *map(float, seconds))


_CELLS: dict[str, Callable[[str], Any]] = {  # columns that are more than their text
    "codes": lambda text: tuple(text.split()),
    "suspects": _RANKS.__getitem__,
    "tie": _RANKS.__getitem__,
    "sides": lambda text: tuple(_RANKS[side] for side in text.split(" / ")),
    "ranks": lambda text: tuple(map(int, text.split())),
    "seconds": float,
    "ending": _ending,
    "hang_seconds": float,
    "mends": bool,
    "settings": json.loads,
    "environment": lambda text: dict(pair.split("=") for pair in text.split()),
}


def _rows() -> Iterator[tuple[str, Case]]:
    with Path(__file__).with_suffix(".csv").open(newline="") as table:
        for row in csv.DictReader(table):
            name = row.pop("set")
            yield name, Case(**{key: _CELLS.get(key, str)(text) for key, text in row.items() if text})


GROUPS: dict[str, list[Case]] = {}
for _set, _case in _rows():
    GROUPS.setdefault(_set, []).append(_case)
CASES = GROUPS[MATRIX]
BY_NAME = {case.name: case for cases in GROUPS.values() for case in cases}
