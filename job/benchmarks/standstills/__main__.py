"""python -m job.benchmarks.standstills: random programs with one fault, and what is said of their standstills.

The counts of each form of the analyzer stay in the results, and so does the comparison with real runs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import environment
from job.benchmarks import RESULTS

from . import chooser, faults, measure, page, real, show


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m job.benchmarks.standstills", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="programs to play (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first program (default: 0)")
    parser.add_argument("--form", default="today", help="of the analyzer; its row in the results (default: today)")
    parser.add_argument(
        "--chooser", action="store_true", help="fit a chooser to the generator instead, as an upper mark"
    )
    parser.add_argument("--real", type=int, metavar="COUNT", help="run so many under torchrun and gloo instead")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="tell all about one instead, and shrink it")
    parser.add_argument("--no-write", action="store_true", help="leave job/benchmarks/results as it is")
    options = parser.parse_args()
    if options.show is not None:
        show.show(options.show)
        return
    file = RESULTS / f"{page.PAGE.name}.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"forms": {}}
    begin = time.perf_counter()
    facts = environment.describe(
        f"python -m job.benchmarks.standstills{_told(options)}", None if options.no_write else RESULTS
    )
    if options.real is not None:
        results["real"] = {"environment": facts, "seed": options.seed, **_real(options.seed, options.real)}
    elif options.chooser:
        # fitted to as many others
        others, own = measure.seeds(options.seed + 1, options.count), measure.seeds(options.seed, options.count)
        results["chooser"] = {"environment": facts, "seed": options.seed, **chooser.outcomes(others, own)}
    else:
        rows = measure.measure_all(measure.seeds(options.seed, options.count), len(os.sched_getaffinity(0)))
        results["forms"].pop(options.form, None)  # the last one is shown in full
        told = {"seconds": time.perf_counter() - begin, "seed": options.seed, "kinds": len(faults.KINDS)}
        counts = told | measure.tables(rows)
        results["forms"][options.form] = {"environment": facts, **counts}
    page.PAGE.keep(results, RESULTS, write=not options.no_write)


def _told(options: argparse.Namespace) -> str:
    count = f"--count {options.count}" if options.real is None else f"--real {options.real}"
    return f" {count} --seed {options.seed}" + (" --chooser" if options.chooser else "")


def _real(seed: int, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        compared = real.compare(iter(measure.seeds(seed, 1_000_000)), count, Path(folder))
    for one in compared:
        if not one.agrees:
            environment.log("\n".join(real.told(one)))
    return {"programs": count, "agree": sum(one.agrees for one in compared), "by kind": real.by_kind(compared)}


if __name__ == "__main__":
    main()
