"""python -m benchmarks.diagnosis.faults: faults in real jobs, and whether they are named right."""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import sys
from pathlib import Path

from benchmarks.environment import describe, load
from tensorwire.diagnosis.recording import Recorder

from .cases import BY_NAME, CASES, Case
from .launch import WORLD_SIZE
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
    parser.add_argument("--record", type=Path, metavar="DIR", help="run each case once, and keep a recording there")
    parser.add_argument("--rank", type=int, choices=range(WORLD_SIZE), help="with --record: the faulty rank")
    options = parser.parse_args()
    cases = [BY_NAME[name] for name in options.case] if options.case else CASES
    if options.record is not None:
        record(cases, options.record, options.rank)
        return
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


def record(cases: list[Case], folder: Path, rank: int | None) -> None:
    """Run each case once, the faulty rank rotated from case to case, and keep what was seen of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with Stage() as stage:
        for number, case in enumerate(cases):
            if case.needs == "services" or reason_to_skip(case):
                continue
            place = case.rank(number if rank is None else rank)
            path = folder / f"{case.name}-{place}.jsonl.gz"
            path.unlink(missing_ok=True)
            with Recorder(path) as recorder:
                show(case, stage.run(case, place, recorder.write))
            path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), mtime=0))  # without the flushes


if __name__ == "__main__":
    main()
