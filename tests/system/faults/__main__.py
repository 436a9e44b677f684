"""python -m tests.system.faults: faults in real jobs, and whether they are named right."""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import signal
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

from benchmarks.environment import describe, load
from tensorwire.diagnosis.service.recording import Recorder

from . import levels
from .cases import BY_NAME, CASES, Case
from .results import JSON, Results
from .run import Stage, reason_to_skip, show
from .training_job import WORLD_SIZE
from .watch import THRESHOLDS, interrupted

_BATCH = 4  # runs of a case in a row: once at each rank
Turn = list[tuple[Case, int]]  # runs that one job may have, one after another: a case, and the rank to befall


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.system.faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="of each case, those in the results included (default 20)")
    parser.add_argument("--case", action="append", choices=list(BY_NAME), help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="jobs at a time (default 2): ranks sleep for the most part")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are in the results")
    parser.add_argument("--output", type=Path, default=JSON, help="a .json file; the page is written beside it")
    parser.add_argument("--record", type=Path, metavar="DIR", help="run each case once, and keep a recording there")
    parser.add_argument("--rank", type=int, choices=range(WORLD_SIZE), help="with --record: the faulty rank")
    parser.add_argument(
        "--levels",
        action="store_true",
        help="run nothing: count the right verdicts of each confidence in the recordings",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    cases = [BY_NAME[name] for name in options.case] if options.case else CASES
    if options.record is not None:
        record(cases, options.record, options.rank)
        return
    if options.levels:
        results = Results(options.output, json.loads(options.output.read_text())["environment"])
        results.recorded = levels.of_recordings()
        results.write()
        print(results.page())
        return
    facts = describe(" ".join(["python -m tests.system.faults", *sys.argv[1:]]))
    facts |= {"load": load(), "thresholds": ", ".join(f"{k} {v:g}" for k, v in dataclasses.asdict(THRESHOLDS).items())}
    try:
        results = Results(options.output, facts, fresh=options.fresh)
    except ValueError as error:
        parser.error(str(error))
    for case in cases:
        results.skipped.pop(case.name, None)
        if reason := reason_to_skip(case):
            results.skipped[case.name] = reason
    due = turns([case for case in cases if case.name not in results.skipped], results, options.runs)
    run(due, results, options.jobs)
    results.write()
    print(results.page())
    if any(row["wrong"] for row in results.rows):
        sys.exit(3)
    if any(results.due(case, options.runs) for case in cases if case.name not in results.skipped):
        sys.exit("some runs failed and are due: run the same command again")


def turns(cases: list[Case], results: Results, num_runs: int) -> list[Turn]:
    """What is due. Every case has a few runs before any has all; cases that can share a job come together."""
    due = {case.name: results.due(case, num_runs) for case in cases}
    groups: dict[object, list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.job if case.mends else case.name].append(case)
    large_first = sorted(groups.values(), key=len, reverse=True)
    found = [
        [(case, rank) for case in group for rank in due[case.name][first : first + _BATCH]]
        for first in range(0, num_runs, _BATCH)
        for group in large_first
    ]
    return [turn for turn in found if turn]


def run(due: list[Turn], results: Results, num_jobs: int) -> None:
    """Take all turns, so many at a time."""
    queue: SimpleQueue[Turn] = SimpleQueue()
    for turn in due:
        queue.put(turn)
    progress = Progress(sum(map(len, due)))
    with ThreadPoolExecutor(num_jobs) as pool:
        workers = [pool.submit(work, queue, results, progress) for _ in range(num_jobs)]
        try:
            for worker in workers:
                worker.result()
        except BaseException:
            interrupted.set()
            raise


def work(queue: SimpleQueue[Turn], results: Results, progress: Progress) -> None:
    """Take turns until there are no more. Whatever befalls one run, the others go on."""
    with Stage() as stage:
        while True:
            try:
                turn = queue.get_nowait()
            except Empty:
                return
            for case, rank in turn:
                progress.say(attempt(stage, case, rank, results))


def attempt(stage: Stage, case: Case, rank: int, results: Results) -> str:
    """One run; says what came of it."""
    try:
        outcome = stage.run(case, rank)
    except Exception as error:
        stage.reset()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        results.add_failed(case, rank, reason)
        return f"{case.name} at rank {rank}: FAILED: {reason}"
    results.add(case, rank, seconds=outcome.seconds, wrong=outcome.wrong, levels=outcome.levels)
    return show(case, outcome)


class Progress:
    """Says what was done and how long the rest will take. For any thread."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            self._done += 1
            left = (time.monotonic() - self._start) / self._done * (self._total - self._done)
            print(f"[{self._done} of {self._total}, {left / 60:.0f} min left] {text}", file=sys.stderr, flush=True)


def record(cases: list[Case], folder: Path, rank: int | None) -> None:
    """Run each case once, the faulty rank rotated from case to case, and keep what was seen of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with Stage() as stage:
        for number, case in enumerate(cases):
            if reason_to_skip(case):
                continue
            place = case.rank(number if rank is None else rank)
            path = folder / f"{case.name}-{place}.jsonl.gz"
            path.unlink(missing_ok=True)
            with Recorder(path, case.thresholds) as recorder:
                print(show(case, stage.run(case, place, recorder.write)), file=sys.stderr, flush=True)
            path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), mtime=0))  # without the flushes


if __name__ == "__main__":
    main()
