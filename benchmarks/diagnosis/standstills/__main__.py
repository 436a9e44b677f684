"""python -m benchmarks.diagnosis.standstills: random programs with one fault, and what is said of their standstills."""

from __future__ import annotations

import argparse
import json
import os
import time

from benchmarks import environment, pages

from . import measure, page, show

NAME = "diagnosis-standstills"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis.standstills", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="programs to play (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first program (default: 0)")
    parser.add_argument("--form", default="today", help="of the analyzer; its row in the results (default: today)")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results as it is")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="tell all about one standstill instead, shrunk")
    options = parser.parse_args()
    if options.show is not None:
        show.show(options.show)
        return
    begin = time.perf_counter()
    rows = measure.measure_all(measure.seeds(options.seed, options.count), len(os.sched_getaffinity(0)))
    command = f"python -m benchmarks.diagnosis.standstills --count {options.count} --seed {options.seed}"
    found = {
        "environment": environment.describe(command),
        "seconds": time.perf_counter() - begin,
        "seed": options.seed,
        **measure.tables(rows),
    }
    file = environment.RESULTS / f"{NAME}.json"
    forms = json.loads(file.read_text()) if file.exists() else {}
    forms.pop(options.form, None)  # the last one is shown in full
    forms = {**forms, options.form: found}
    text = json.dumps(forms, indent=1) + "\n"
    pages.publish(NAME, text, page.page(forms), write=not options.no_write)


if __name__ == "__main__":
    main()
