"""Measure publishing and following, and write the results: python -m benchmarks.sync [TABLE...] [--quick].

`make sync` runs all tables. One table can be run alone; those that are in the results already stay.
"""

from __future__ import annotations

import argparse

from benchmarks.results_page import Page, measure_tables, of_tables
from benchmarks.sync import commit, cost, endurance, finetune, links, targets
from benchmarks.tables import add_options

TABLES = (
    cost.COST,
    cost.STAGED,
    commit.TABLE,
    links.COMPUTED,
    links.BREAK_EVEN,
    links.SHAPED,
    endurance.TABLE,
    finetune.TABLE,
)
HEAD = "# Results of publishing and following\n\n[The page](DOCS/sync.md) says how to use them."
PAGE = Page("sync", of_tables(HEAD, TABLES, targets.evaluate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    measure_tables(PAGE, TABLES, parser.parse_args())
