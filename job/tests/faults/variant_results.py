"""Runs of variants: the first ones of those that nobody had tuned for stand beside those after mending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.environment import ROOT

from . import together, variant_page
from .runs import Row, Runs, left
from .variant_run import show

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from .variants import Variant
    from .verdicts import Judgement

JSON = ROOT / "job" / "benchmarks" / "results" / "diagnosis-unseen.json"
FIRST, MENDED = "first", "mended"
STAGES = (FIRST, MENDED)


class VariantResults(Runs):
    """What was judged so far.

    Args:
        stage: of the runs to come: "first", before anyone tuned the analyzer to a variant, or "mended", the code now.
        forget: names of variants whose runs of this stage are made again. First runs are kept for good.
    """

    def __init__(
        self, path: Path, environment: dict[str, Any], stage: str = MENDED, forget: Collection[str] = ()
    ) -> None:
        if stage == FIRST and forget:
            raise ValueError("first results are made once: they are not begun again")
        self._stage = stage
        super().__init__(path, environment)
        self.rows = [row for row in self.rows if row["stage"] != stage or row["case"] not in forget]

    def due(self, variant: Variant, num_runs: int | None = None) -> list[int]:
        """The ranks that it has to befall yet; by default each of its ranks once."""
        ranks = variant.ranks
        turns = [ranks[run % len(ranks)] for run in range(len(ranks) if num_runs is None else num_runs)]
        return left([row for row in self.rows if row["case"] == variant.name and row["stage"] == self._stage], turns)

    def keep(self, variant: Variant, rank: int, judged: Judgement) -> str:
        """Add what came of a run; says it in a line."""
        self.append(self.rows, {"case": variant.name, "rank": rank, "stage": self._stage, **judged.as_row()})
        return show(variant, rank, judged)

    def add_failed(self, variant: Variant, rank: int, reason: str) -> None:
        """A run that could not be judged. It does not count, and is due again."""
        self.append(self.failed, {"case": variant.name, "rank": rank, "stage": self._stage, "reason": reason})

    def write(self) -> None:
        """Rows in one order, whichever was run first: results of two places are then easy to bring together."""
        self.rows.sort(key=_order)
        super().write()

    def page(self) -> str:
        rest = ["", "## Together", "", together.summary(self.rows), *self.not_judged(), ""]
        return variant_page.page(self.rows, self.environment) + "\n".join(rest)


def _order(row: Row) -> tuple[str, int, int]:
    return row["case"], STAGES.index(row["stage"]), row["rank"]
