"""python -m job.tests.faults: faults in real jobs, and whether they are named right."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environment import describe, load

from . import levels, variant_program, variant_results, variants
from .cases import BY_NAME, CASES, Case
from .results import JSON, Results
from .run import Stage, reason_to_skip, show
from .training_job import WORLD_SIZE
from .turns import recording, take
from .variants import GATES
from .watch import THRESHOLDS

if TYPE_CHECKING:
    from tensorwire_job.model import Thresholds

    from .turns import Turn

_BATCH = 4  # runs of a case in a row: once at each rank


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m job.tests.faults", description=__doc__)
    parser.add_argument("--case", action="append", choices=list(BY_NAME), help="only this one; may be repeated")
    parser.add_argument(
        "--variants", choices=[*variants.GROUPS, "all"], help="run variants of faults and healthy jobs instead of cases"
    )
    parser.add_argument(
        "--variant", action="append", choices=list(variants.BY_NAME), help="only this variant; may be repeated"
    )
    parser.add_argument(
        "--stage",
        choices=variant_results.STAGES,
        default=variant_results.MENDED,
        help="of variants: first, before anyone tuned the analyzer to them, or mended, the code of now (default)",
    )
    parser.add_argument(
        "--runs",
        type=int,
        help="of each, those in the results included (default: 20 of a case, one at each rank of a variant)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="jobs at a time (default 2): ranks sleep for the most part")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are in the results")
    parser.add_argument("--output", type=Path, help="a .json file; the page is written beside it")
    parser.add_argument("--record", type=Path, metavar="DIR", help="run each once, and keep a recording there")
    parser.add_argument(
        "--rank", type=int, choices=range(WORLD_SIZE), help="the faulty rank, of variants and with --record"
    )
    parser.add_argument(
        "--levels",
        action="store_true",
        help="run nothing: count the right verdicts of each confidence in the recordings",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    if options.variants or options.variant:
        if options.case or options.levels:
            parser.error("--case and --levels are about cases, not variants")
        code = variant_program.run(options, parser, environment(GATES))
    else:
        code = run_cases(options, parser)
    sys.exit(code)


def environment(thresholds: Thresholds) -> dict[str, Any]:
    """What the results depend on."""
    facts = describe(" ".join(["python -m job.tests.faults", *sys.argv[1:]]))
    return facts | {
        "load": load(),
        "thresholds": ", ".join(f"{name} {value:g}" for name, value in dataclasses.asdict(thresholds).items()),
    }


def run_cases(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int | str:
    """Do what is asked for with cases; gives the exit status, or why it is 1."""
    cases = [BY_NAME[name] for name in options.case] if options.case else CASES
    output, num_runs = options.output or JSON, 20 if options.runs is None else options.runs
    if options.record is not None:
        record(cases, options.record, options.rank)
        return 0
    if options.levels:
        results = Results(output, json.loads(output.read_text())["environment"])
        results.recorded = levels.of_recordings()
        results.write()
        print(results.page())
        return 0
    try:
        results = Results(output, environment(THRESHOLDS), fresh=options.fresh)
    except ValueError as error:
        parser.error(str(error))
    for case in cases:
        results.skipped.pop(case.name, None)
        if reason := reason_to_skip(case):
            results.skipped[case.name] = reason
    due = turns([case for case in cases if case.name not in results.skipped], results, num_runs)
    run(due, results, options.jobs)
    results.write()
    print(results.page())
    if any(row["wrong"] for row in results.rows):
        return 3
    if any(results.due(case, num_runs) for case in cases if case.name not in results.skipped):
        return "some runs failed and are due: run the same command again"
    return 0


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
    take(due, num_jobs, Stage, results)


def record(cases: list[Case], folder: Path, rank: int | None) -> None:
    """Run each case once, the faulty rank rotated from case to case, and keep what was seen of it."""
    with Stage() as stage:
        for number, case in enumerate(cases):
            if reason_to_skip(case):
                continue
            place = case.rank(number if rank is None else rank)
            with recording(folder, case, place, case.thresholds) as keep:
                print(show(case, stage.run(case, place, keep)), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
