"""Several ways to train, each with the seeds of the others: what they make of the loss is seen in pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.environment import log
from benchmarks.traffic import job

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from benchmarks.traffic.table import Row


def measured(
    module: str, names: Sequence[str], settings: dict[str, Any], *, once: Collection[str] = (), of: str = "loss"
) -> list[Row]:
    """What the job gives for each seed and name, and how that differs from the run of the first name with that seed.

    `gap` is the difference of `of`. If jobs give `nbytes` or a `digest`, `part` is the quotient of the former, and
    `same` says whether the latter is equal.

    Args:
        module: of the job.
        names: of the ways.
        settings: of the job, which also gets `name` and `seed`; one of them is `seeds`.
        once: names that have the first seed alone, since they need no mean.
        of: what is compared.
    """
    rows: list[Row] = []
    seeds = settings["seeds"]
    for seed in seeds:
        for name in names:
            if seed == seeds[0] or name not in once:
                log(f"{name}, seed {seed}")
                rows.append({"run": name, "seed": seed} | job.run(module, settings | {"name": name, "seed": seed}))
    return compared(rows, of)


def compared(rows: list[Row], of: str) -> list[Row]:
    """The first row of each seed is what the others of that seed are compared with."""
    first: dict[int, Row] = {}
    for row in rows:
        first.setdefault(row["seed"], row)
    return [_compared(row, first[row["seed"]], of) for row in rows]


def _compared(row: Row, other: Row, of: str) -> Row:
    found = {key: value for key, value in row.items() if key not in ("nbytes", "digest")}
    found["gap"] = row[of] - other[of]
    if "nbytes" in row:
        found["part"] = row["nbytes"] / other["nbytes"]
    if "digest" in row:
        found["same"] = row["digest"] == other["digest"]
    return found
