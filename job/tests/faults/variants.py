"""Faults of another kind than cases.py has, and healthy jobs: variants.csv, a row for each.

A variant is a training program of its own, which the fault befalls at a known moment. A program is a plain script, as a
user writes it, that knows nothing of the probe: programs/NAME.py, started once for each rank. programs/common.py tells
it whom the fault befalls. The sets:

- known: an earlier analyzer was given them once, when the matrix of cases.py did not have them.
- unseen: thought of from the docs alone, each another mechanism than any in cases.py and of the known ones. They were
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorwire_job.model import Thresholds

from .training_job import WORLD_SIZE

GATES = Thresholds(hang_seconds=5.0, slow_seconds=5.0, lost_seconds=2.0)
_WORLD = range(WORLD_SIZE)
Ranks = Callable[[int], list[int]]


def _alone(rank: int) -> list[int]:
    return [rank]


_RANKS: dict[str, Ranks] = {  # in the words of the table, of the rank that a fault befalls
    "none": lambda _: [],
    "all": lambda _: list(_WORLD),
    "others": lambda rank: [each for each in _WORLD if each != rank],
    "R and the next": lambda rank: sorted((rank, (rank + 1) % WORLD_SIZE)),
    "R and the last": lambda rank: [0, 1] if rank == 0 else [rank - 1, rank],  # stages that wait for each other
    "R and its partner": lambda rank: sorted((rank, rank ^ 1)),  # in a row, the tp group, of a 2 x 2 mesh
    "R and its replica": lambda rank: sorted((rank, rank ^ 2)),  # in a column, the dp group
    "not started": lambda _: [WORLD_SIZE],
}


@dataclass(frozen=True)
class Ending:
    """All ranks get a signal so long after the fault; what `diagnose` says of the dead job is judged."""

    name: str  # of the signal
    seconds: float
    gap: float = 0.0  # seconds between the signals to two ranks


@dataclass(frozen=True)
class Variant:
    """What goes wrong in a program, and what has to be said of it. The job lives, unless it has an `ending`."""

    name: str
    program: str
    about: str  # what goes wrong, in one sentence
    codes: tuple[str, ...] = ()  # classes that are right; () where nothing may be found
    function: str = "main"  # of the program
    suspects: Ranks = _alone  # who is right
    tie: Ranks | None = None  # suspects that are an honest tie: found, but not right
    ranks: tuple[int, ...] = tuple(_WORLD)  # that it befalls, in turn
    seconds: float = 20.0  # to look on from the fault
    ending: Ending | None = None
    notice: str = ""  # words that a notice must have, where `codes` is ()
    needs: str = ""  # as in needs.py
    environment: dict[str, str] = field(default_factory=dict)
    launcher: str = ""  # that starts the ranks, "torchrun" or "accelerate"; "": they are started one by one
    before: str = ""  # what was said of it before it was in this matrix, and how often that was right

    @property
    def expected(self) -> str:
        """In words, with R for the rank that it befalls."""
        if not self.codes:
            return "nothing, and a notice" if self.notice else "nothing"
        ranks = sorted({says(self.suspects(rank), rank) for rank in self.ranks})
        return f"{' or '.join(self.codes)} {' or '.join(ranks)}".rstrip()


def says(suspects: list[int], rank: int) -> str:
    """Suspects in words, with R for the rank that the fault befell."""
    return ", ".join("R" if each == rank else str(each) for each in suspects)


def _ending(text: str) -> Ending:
    name, *seconds = text.split()
    return Ending(name, *map(float, seconds))


_CELLS: dict[str, Callable[[str], Any]] = {  # columns that are more than their text
    "codes": lambda text: tuple(text.split()),
    "suspects": _RANKS.__getitem__,
    "tie": _RANKS.__getitem__,
    "ranks": lambda text: tuple(map(int, text.split())),
    "seconds": float,
    "ending": _ending,
    "environment": lambda text: dict(pair.split("=") for pair in text.split()),
}


def _rows() -> Iterator[tuple[str, Variant]]:
    with Path(__file__).with_suffix(".csv").open(newline="") as table:
        for row in csv.DictReader(table):
            name = row.pop("set")
            yield name, Variant(**{key: _CELLS.get(key, str)(text) for key, text in row.items() if text})


GROUPS: dict[str, list[Variant]] = {}
for _set, _variant in _rows():
    GROUPS.setdefault(_set, []).append(_variant)
BY_NAME = {variant.name: variant for variants in GROUPS.values() for variant in variants}
