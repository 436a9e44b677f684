"""python -m job.tests.faults: faults in real jobs, and whether they are named right."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.environment import describe, load

from . import matrix_page, stacks_page, variant_page
from .cases import BY_NAME, CASES, GATES, GROUPS, MATRIX, Case
from .needs import missing
from .results import MENDED, STAGES, Results
from .run import Stage
from .stack_run import SECONDS, StackStage, stack_cases
from .training_job import WORLD
from .turns import recording, show, take, turns
from .watch import THRESHOLDS

_NUM_RUNS = 3  # of a case of the matrix


def main() -> None:
    sets = {name: cases for name, cases in GROUPS.items() if name != MATRIX}
    variants = [case.name for cases in sets.values() for case in cases]
    parser = argparse.ArgumentParser(prog="python -m job.tests.faults", description=__doc__)
    parser.add_argument(
        "--case", action="append", choices=[case.name for case in CASES], help="only this one; may be repeated"
    )
    parser.add_argument(
        "--variants", choices=[*sets, "all"], help="run variants of faults and healthy jobs instead of cases"
    )
    parser.add_argument("--variant", action="append", choices=variants, help="only this variant; may be repeated")
    parser.add_argument(
        "--stage",
        choices=STAGES,
        default=MENDED,
        help="of variants: first, before anyone tuned the analyzer to them, or mended, the code of now (default)",
    )
    parser.add_argument(
        "--runs",
        type=int,
        help="of each, those in the results included (default: 3 of a case, one at each rank of a variant)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="jobs at a time (default 2): ranks sleep for the most part")
    parser.add_argument("--fresh", action="store_true", help="forget the runs of these that are in the results")
    parser.add_argument("--output", type=Path, help="a .json file; the page is written beside it")
    parser.add_argument("--record", type=Path, metavar="DIR", help="run each once, and keep a recording there")
    parser.add_argument("--rank", type=int, choices=WORLD, help="the faulty rank, of variants and with --record")
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="run the variants that hang without the probe, each at one rank, and judge what py-spy shows of them",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    are_variants = bool(options.variants or options.variant)
    if options.stacks and (options.variants or options.case or options.record or options.runs):
        parser.error("--stacks goes with --variant, --rank, --jobs, --fresh and --output")
    if are_variants and options.case:
        parser.error("--case is about cases, not variants")
    names = options.variant or options.case
    if options.stacks:
        cases = [case for case in stack_cases() if not names or case.name in names]
    elif names:
        cases = [BY_NAME[name] for name in names]
    elif are_variants:
        cases = [BY_NAME[name] for name in variants] if options.variants == "all" else sets[options.variants]
    else:
        cases = CASES
    if options.rank is not None and (are_variants or options.record or options.stacks):
        cases = [_at(case, options.rank) for case in cases]
    if options.record is not None:
        record(cases, options.record)
        return
    page = stacks_page if options.stacks else variant_page if are_variants else matrix_page
    output = options.output or page.JSON
    facts = environment(are_variants, output.parent)
    if options.stacks:
        facts["thresholds"] = f"none: stacks {SECONDS:g} s after the fault"
    try:
        forget = [case.name for case in cases] if options.fresh else []
        stage = options.stage if page is variant_page else MENDED
        results = Results(output, facts, page.page, stage, forget)
    except ValueError as error:
        parser.error(str(error))
    num_runs = _NUM_RUNS if options.runs is None and page is matrix_page else options.runs
    sys.exit(run(cases, results, num_runs, options.jobs, StackStage if options.stacks else Stage))


def _at(case: Case, rank: int) -> Case:
    """The case at that rank, unless it is about one rank alone."""
    return dataclasses.replace(case, ranks=(rank,)) if case.program or len(case.ranks) > 1 else case


def environment(are_variants: bool, folder: Path) -> dict[str, Any]:
    """What the results in a folder depend on."""
    facts = describe(" ".join(["python -m job.tests.faults", *sys.argv[1:]]), folder)
    gates = dataclasses.asdict(GATES if are_variants else THRESHOLDS)
    return facts | {"load": load(), "thresholds": ", ".join(f"{name} {value:g}" for name, value in gates.items())}


def run(
    cases: list[Case], results: Results, num_runs: int | None, num_jobs: int, stage: type[Stage | StackStage]
) -> int | str:
    """Take all turns that are due, so many at a time; gives the exit status, or why it is 1."""
    for case in cases:
        results.skipped.pop(case.name, None)
        if reason := missing(case.needs):
            results.skipped[case.name] = reason
    able = [case for case in cases if case.name not in results.skipped]
    take(turns(able, results, num_runs), num_jobs, stage, results)
    results.write()
    print(results.page())
    if any(results.is_wrong(case) for case in able):
        return 3
    if any(results.due(case, num_runs) for case in able):
        return "some runs failed and are due: run the same command again"
    return 0


def record(cases: list[Case], folder: Path) -> None:
    """Run each case once, the faulty rank rotated from case to case, and keep what was seen of it."""
    with Stage() as stage:
        for number, case in enumerate(cases):
            if missing(case.needs):
                continue
            rank = case.ranks[number % len(case.ranks)]
            with recording(folder, case, rank) as keep:
                judged = stage.run(case, rank, keep)
            print(show(case, rank, judged), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
