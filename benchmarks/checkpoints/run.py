"""Measure checkpoints and write the results: python -m benchmarks.checkpoints dcp|remote [TABLE...] [--quick].

`make dcp` and `make remote` run all tables. One table can be run alone; those that are in the results already stay.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import environment
from benchmarks.checkpoints import dcp, remote, report
from benchmarks.tables import measure

PAGES = {"dcp": dcp.TABLES, "remote": remote.TABLES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="of the page; by default all")
    parser.add_argument("--quick", action="store_true", help="little data, which measures nothing, into build/bench")
    options = parser.parse_args()
    tables = PAGES[options.page]
    names = [table.name for table in tables]
    if unknown := set(options.tables) - set(names):
        parser.error(f"expected tables among {', '.join(names)}, got {', '.join(unknown)}")
    chosen = [table for table in tables if table.name in (options.tables or names)]
    folder = environment.folder(quick=options.quick)
    _, failed = measure(chosen, folder / f"{options.page}.json", quick=options.quick, command=f"make {options.page}")
    page = report.write(options.page, folder, tables)
    print(page.read_text(), end="")
    if failed:
        sys.exit(f"these tables have failed, and their old results stay: {', '.join(failed)}")


if __name__ == "__main__":
    main()
