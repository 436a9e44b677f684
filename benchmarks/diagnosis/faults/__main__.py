"""python -m benchmarks.diagnosis.faults: faults in real jobs, and whether they are named right."""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from benchmarks.environment import describe, load
from tensorwire.diagnosis.recording import Recorder

from .cases import BY_NAME, CASES, Case
from .launch import WORLD_SIZE
from .results import JSON, Results
from .run import Outcome, Stage, reason_to_skip, show
from .watch import THRESHOLDS, interrupted

_BATCH = 4  # runs of a case in a row: once at each rank
Turn = tuple[Case, list[int]]  # a case, and the ranks to befall


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis.faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs of each case (default 20)")
    parser.add_argument("--case", action="append", choices=list(BY_NAME), help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="jobs at a time (default 2): ranks sleep for the most part")
    parser.add_argument("--resume", action="store_true", help="keep the runs that are in the results already")
    parser.add_argument("--output", type=Path, default=JSON, help="a .json file; the table is written beside it")
    parser.add_argument("--record", type=Path, metavar="DIR", help="run each case once, and keep a recording there")
    parser.add_argument("--rank", type=int, choices=range(WORLD_SIZE), help="with --record: the faulty rank")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    cases = [BY_NAME[name] for name in options.case] if options.case else CASES
    if options.record is not None:
        record(cases, options.record, options.rank)
        return
    facts = describe(f"python -m benchmarks.diagnosis.faults --runs {options.runs}")
    facts |= {"load": load(), "thresholds": ", ".join(f"{k} {v:g}" for k, v in dataclasses.asdict(THRESHOLDS).items())}
    results = Results(options.output, facts, resume=options.resume)
    results.skipped = {case.name: reason for case in cases if (reason := reason_to_skip(case))}
    todo = [case for case in cases if case.name not in results.skipped]
    turns: SimpleQueue[Turn | None] = SimpleQueue()
    for first in range(0, options.runs, _BATCH):
        for case in todo:
            runs = range(max(first, results.count(case)), min(first + _BATCH, options.runs))
            turns.put((case, [case.rank(run) for run in runs]))
    for _ in range(options.jobs):
        turns.put(None)
    with ThreadPoolExecutor(options.jobs) as pool:
        workers = [pool.submit(work, turns, results) for _ in range(options.jobs)]
        try:
            for worker in workers:
                worker.result()
        except BaseException:
            interrupted.set()
            raise
    results.write()
    print(results.page())
    if any(row["wrong"] for row in results.rows):
        sys.exit(3)


def work(turns: SimpleQueue[Turn | None], results: Results) -> None:
    """Take turns until there are no more."""
    with Stage() as stage:
        while (turn := turns.get()) is not None:
            case, ranks = turn
            for rank in ranks:
                try:
                    outcome = stage.run(case, rank)
                except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
                    stage.clear()
                    outcome = Outcome(rank, f"the run failed: {error}", None)
                show(case, outcome)
                results.add({"case": case.name, "rank": rank, "seconds": outcome.seconds, "wrong": outcome.wrong})


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
