"""Measure checkpoints and write the results: python -m benchmarks.checkpoints dcp|remote [TABLE...] [--quick].

`make dcp` and `make remote` run all tables. One table can be run alone; those that are in the results already stay.
"""

from __future__ import annotations

import argparse

from benchmarks.checkpoints import dcp, remote, targets
from benchmarks.results_page import Page
from benchmarks.tables import add_options

PAGES = {
    "dcp": Page("dcp", "distributed checkpoints", dcp.TABLES, targets.evaluate),
    "remote": Page("remote", "remote stores", remote.TABLES, targets.evaluate),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", choices=PAGES)
    add_options(parser)
    options = parser.parse_args()
    PAGES[options.page].measure(options)


if __name__ == "__main__":
    main()
