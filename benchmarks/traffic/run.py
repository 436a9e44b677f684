"""Measure training traffic and write the results: python -m benchmarks.traffic [TABLE...] [--quick].

`make traffic` runs all tables. One table can be run alone; those that are in the results already stay as they are.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.results_page import Page, measure_tables, of_tables
from benchmarks.tables import add_options
from benchmarks.traffic import (
    auto,
    budget,
    calls,
    curves,
    differences,
    equality,
    errors,
    experts,
    loss,
    minilm,
    optimizers,
    recommendation,
    steps,
    tensor_parallel,
    wire,
)
from benchmarks.traffic.targets import evaluate

TABLES = (
    equality.TABLE, differences.TABLE, optimizers.TABLE, wire.TABLE, calls.TABLE, steps.TABLE, minilm.TABLE, auto.TABLE,
    loss.TABLE, errors.TABLE, tensor_parallel.TABLE, budget.TABLE, recommendation.TABLE, experts.TABLE,
)  # fmt: skip


HEAD = """# Results of training traffic

On a CPU and a fast link, the codec and not the link decides how long a message takes.
[Training traffic](DOCS/traffic.md) says what each part is, and for whom.

Every table can be measured alone; the list at the end says when each was, and on what. Bits and bytes are the same on a
busy machine and on a quiet one; times are not. A *contrast* is what has to come out worse, such as a base that is too
old: without it a target would say nothing of the codec.
"""


def _pictures(results: dict[str, Any]) -> list[str]:
    return [f"![Validation loss by step, with and without lossy codecs]({curves.NAME})"] if "loss" in results else []


def _draw(results: dict[str, Any], folder: Path) -> None:
    if "loss" in results:
        curves.write(results["loss"], folder / curves.NAME)


PAGE = Page("traffic", of_tables(HEAD, TABLES, evaluate, _pictures), draw=_draw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    measure_tables(PAGE, TABLES, parser.parse_args())
