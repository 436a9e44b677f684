"""Measure checkpoints and write the results: python -m benchmarks.checkpoints PAGE [TABLE...] [--quick].

PAGE is dcp, directories, remote or training; `make PAGE` runs all tables of it. One table can be run alone; those that
are in the results already stay.
"""

from __future__ import annotations

import argparse

from benchmarks.checkpoints import dcp, directories, reference, remote, targets, training
from benchmarks.results_page import Page, measure_tables, of_tables
from benchmarks.tables import add_options

TITLES = {
    "dcp": "distributed checkpoints",
    "directories": "directories",
    "remote": "remote stores",
    "training": "trainers' checkpoints",
}
TABLES = {
    "dcp": dcp.TABLES,
    "directories": (*directories.TABLES, reference.TABLE),
    "remote": remote.TABLES,
    "training": training.TABLES,
}
HEAD = "# Results of {}\n\n[The page](DOCS/{}.md) says how to use them."
PAGES = {
    name: Page(name, of_tables(HEAD.format(title, name), TABLES[name], targets.evaluate))
    for name, title in TITLES.items()
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", choices=PAGES)
    add_options(parser)
    options = parser.parse_args()
    measure_tables(PAGES[options.page], TABLES[options.page], options)
