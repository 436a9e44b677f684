"""python -m benchmarks.diagnosis.faults: faults in real jobs, and whether they are named right."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from benchmarks.environment import describe, load

from .cases import BY_NAME, CASES
from .results import JSON, Results
from .run import Stage, reason_to_skip, show
from .watch import THRESHOLDS

_BATCH = 4  # runs of a case in a row: once at each rank


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis.faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs of each case (default 20)")
    parser.add_argument("--case", action="append", choices=list(BY_NAME), help="only this one; may be repeated")
    parser.add_argument("--resume", action="store_true", help="keep the runs that are in the results already")
    parser.add_argument("--output", type=Path, default=JSON, help="a .json file; the table is written beside it")
    options = parser.parse_args()
    cases = [BY_NAME[name] for name in options.case] if options.case else CASES
    facts = describe(f"python -m benchmarks.diagnosis.faults --runs {options.runs}")
    facts |= {"load": load(), "thresholds": ", ".join(f"{k} {v:g}" for k, v in dataclasses.asdict(THRESHOLDS).items())}
    results = Results(options.output, facts, resume=options.resume)
    results.skipped = {case.name: reason for case in cases if (reason := reason_to_skip(case))}
    todo = [case for case in cases if case.name not in results.skipped]
    with Stage() as stage:
        for end in range(_BATCH, options.runs + _BATCH, _BATCH):
            for case in todo:
                while (run := results.count(case)) < min(end, options.runs):
                    rank = case.rank(run)
                    outcome = stage.run(case, rank)
                    show(case, outcome)
                    results.add({"case": case.name, "rank": rank, "seconds": outcome.seconds, "wrong": outcome.wrong})
    results.write()
    print(results.page())
    if any(row["wrong"] for row in results.rows):
        sys.exit(3)


if __name__ == "__main__":
    main()
