"""Measure training traffic and write the results: python -m benchmarks.traffic [TABLE...] [--quick].

`make traffic` runs all tables. One table can be run alone; those that are in the results already stay as they are.
"""

from __future__ import annotations

import argparse

from benchmarks import verdicts
from benchmarks.tables import add_options, asked, exit_if, measure
from benchmarks.traffic import (
    auto,
    budget,
    calls,
    differences,
    equality,
    errors,
    experts,
    loss,
    minilm,
    optimizers,
    recommendation,
    report,
    steps,
    tensor_parallel,
    wire,
)
from benchmarks.traffic.targets import evaluate

TABLES = (
    equality.TABLE, differences.TABLE, optimizers.TABLE, wire.TABLE, calls.TABLE, steps.TABLE, minilm.TABLE, auto.TABLE,
    loss.TABLE, errors.TABLE, tensor_parallel.TABLE, budget.TABLE, recommendation.TABLE, experts.TABLE,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    options = parser.parse_args()
    tables, folder = asked(TABLES, options)
    command = f"make traffic TRAFFIC='{' '.join(options.tables)}'" if options.tables else "make traffic"
    results, failed = measure(tables, folder / "traffic.json", quick=options.quick, command=command)
    page = report.write(folder, TABLES)
    for table in tables:
        if table.name in results:
            print(table.render(results[table.name]), end="\n\n")
    if not options.quick:
        print(verdicts.render(evaluate(results)), end="\n\n")
    print(f"All of it is in {page}")
    exit_if(failed)


if __name__ == "__main__":
    main()
