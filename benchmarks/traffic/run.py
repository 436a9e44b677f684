"""Measure training traffic and write the results: python -m benchmarks.traffic [TABLE...] [--quick].

`make traffic` runs all tables. One table can be run alone; those that are in the results already stay as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from benchmarks import environment, summary, verdicts
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
from tests.support import links

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.traffic.table import Table

TABLES = (
    equality.TABLE, differences.TABLE, optimizers.TABLE, wire.TABLE, calls.TABLE, steps.TABLE, minilm.TABLE, auto.TABLE,
    loss.TABLE, errors.TABLE, tensor_parallel.TABLE, budget.TABLE, recommendation.TABLE, experts.TABLE,
)  # fmt: skip


def run(tables: list[Table], folder: Path, *, quick: bool, command: str) -> tuple[dict[str, Any], list[str]]:
    """All results: what lies in `folder`, and these tables measured anew; and the names of those that failed, whose old
    results stay."""
    failed = []
    path = folder / "traffic.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": []}
    for number, table in enumerate(tables, 1):
        if table.needs_links and links.missing():
            environment.log(f"{table.name}: not measured, since this machine has no links: {links.missing()}")
            continue
        environment.log(f"{table.name}: table {number} of {len(tables)}")
        facts, began = environment.describe(command), time.monotonic()
        try:
            rows = table.measure(quick)
        except Exception:
            environment.log(traceback.format_exc())
            failed.append(table.name)
            continue
        results[table.name] = rows
        results["runs"] = [each for each in results["runs"] if each["table"] != table.name]
        results["runs"].append({"table": table.name, "seconds": time.monotonic() - began, "environment": facts})
        path.write_text(summary.dumps(summary.rounded(results)))
    return results, failed


def main() -> None:
    names = [table.name for table in TABLES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="few steps, which measure nothing, into build/bench")
    options = parser.parse_args()
    if unknown := set(options.tables) - set(names):
        parser.error(f"expected tables among {', '.join(names)}, got {', '.join(unknown)}")
    chosen = [table for table in TABLES if table.name in (options.tables or names)]
    folder = environment.folder(quick=options.quick)
    command = f"make traffic TRAFFIC='{' '.join(options.tables)}'" if options.tables else "make traffic"
    results, failed = run(chosen, folder, quick=options.quick, command=command)
    page = report.write(folder, TABLES)
    for table in chosen:
        if table.name in results:
            print(table.render(results[table.name]), end="\n\n")
    if not options.quick:
        print(verdicts.render(evaluate(results)), end="\n\n")
    print(f"All of it is in {page}")
    if failed:
        sys.exit(f"these tables have failed, and their old results stay: {', '.join(failed)}")


if __name__ == "__main__":
    main()
