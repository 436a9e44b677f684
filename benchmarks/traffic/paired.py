"""Several ways to train, each with the seeds of the others: what they make of the loss is seen in pairs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmarks import job

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from benchmarks.tables import Row


def measured(
    run: Callable[[Any], Row], names: Sequence[str], settings: Row, *, once: Collection[str] = (), of: str = "loss"
) -> list[Row]:
    """What the job gives for each seed and name, and how that differs from the run of the first name with that seed.

    `gap` is the difference of `of`. If jobs give `nbytes` or a `digest`, `part` is the quotient of the former, and
    `same` says whether the latter is equal.

    Args:
        run: what ranks call for each seed and name, a function of a module.
        names: of the ways.
        settings: which it takes, with `name` and `seed`; one of them is `seeds`.
        once: names that have the first seed alone, since they need no mean.
        of: what is compared.
    """
    seeds = settings["seeds"]
    runs = [(name, seed) for seed in seeds for name in names if seed == seeds[0] or name not in once]
    every = [settings | {"name": name, "seed": seed} for name, seed in runs]
    answers = job.run(_rank, {"run": [run.__module__, run.__name__], "settings": every})
    rows = [{"run": name, "seed": seed} | answer for (name, seed), answer in zip(runs, answers, strict=True)]
    first: dict[int, Row] = {}
    for row in rows:
        first.setdefault(row["seed"], row)
    return [_compared(row, first[row["seed"]], of) for row in rows]


def _rank(given: dict[str, Any]) -> list[Row]:
    """All runs, one behind the other, since ranks take long to start."""
    module, name = given["run"]
    run, answers = getattr(import_module(module), name), []
    for number, each in enumerate(given["settings"], 1):
        job.say(f"{each['name']}, seed {each['seed']}: run {number} of {len(given['settings'])}")
        answers.append(run(each))
    return answers


def _compared(row: Row, other: Row, of: str) -> Row:
    found = {key: value for key, value in row.items() if key not in ("nbytes", "digest")}
    found["gap"] = row[of] - other[of]
    if "nbytes" in row:
        found["part"] = row["nbytes"] / other["nbytes"]
    if "digest" in row:
        found["same"] = row["digest"] == other["digest"]
    return found
