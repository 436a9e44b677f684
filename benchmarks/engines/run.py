"""Measure what engines take and write the results: python -m benchmarks.engines [SECTION...] [--quick].

`make engines` runs all sections. A section is a module of this package with TABLES and `evaluate`, which finds targets
in all results. One that is not named on the command line keeps the results that it has. What a section needs besides
the packages of the benchmarks it imports while it measures: every section has to show its tables everywhere.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

from benchmarks import engines
from benchmarks.engines import pictures
from benchmarks.results_page import Page, measure_tables, of_tables
from benchmarks.tables import add_options

if TYPE_CHECKING:
    from types import ModuleType

    from benchmarks.verdicts import Verdict

HEAD = """
# Results of engines

What inference engines take of tensorwire: [pages of keys and values](DOCS/kv.md),
[what a training step changed](DOCS/deltas.md), and
[new weights while they serve](DOCS/vllm.md#new-weights-while-it-serves).
[What engines are sent](DOCS/engines.md) has it in one picture.
"""
ALT = f"![Bits a changed word of four wires, and ratios of keys and values]({pictures.PICTURE})"


def sections() -> dict[str, ModuleType]:
    """The modules that have tables, by name."""
    names = [each.name for each in pkgutil.iter_modules(engines.__path__) if each.name not in ("__main__", "run")]
    modules = {name: importlib.import_module(f"{engines.__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "TABLES")}


def page() -> Page:
    found = sections().values()

    def evaluate(results: dict[str, Any]) -> list[Verdict]:
        return [verdict for module in found for verdict in module.evaluate(results)]

    def shown(results: dict[str, Any]) -> list[str]:
        return [ALT] if {"wires", "ratios"} <= results.keys() else []

    tables = [table for module in found for table in module.TABLES]
    return Page("engines", of_tables(HEAD, tables, evaluate, shown), draw=pictures.draw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    options = parser.parse_args()
    found = sections()
    if unknown := set(options.tables) - found.keys():
        sys.exit(f"expected sections among {', '.join(found)}, got {', '.join(sorted(unknown))}")
    tables = [table for name in options.tables or found for table in found[name].TABLES]
    measure_tables(page(), tables, argparse.Namespace(tables=[], quick=options.quick))
