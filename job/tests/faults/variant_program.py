"""What the command line does with variants."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorwire_job.model import ASKED

from .needs import missing
from .turns import recording, take
from .variant_results import JSON, VariantResults
from .variant_run import VariantStage, show
from .variants import BY_NAME, GATES, GROUPS

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from .turns import Turn
    from .variants import Variant


def run(options: argparse.Namespace, parser: argparse.ArgumentParser, facts: dict[str, Any]) -> int | str:
    """Do what is asked for; gives the exit status, or why it is 1."""
    variants = _chosen(options)
    if options.record is not None:
        _record(variants, options.record)
        return 0
    forget = [variant.name for variant in variants] if options.fresh else []
    try:
        results = VariantResults(options.output or JSON, facts, options.stage, forget)
    except ValueError as error:
        parser.error(str(error))
    for variant in variants:
        results.skipped.pop(variant.name, None)
        if reason := missing(variant.needs):
            results.skipped[variant.name] = reason
    able = [variant for variant in variants if variant.name not in results.skipped]
    take(turns(able, results, options.runs), options.jobs, VariantStage, results)
    results.write()
    print(results.page())
    if any(results.due(variant, options.runs) for variant in able):
        return "some runs failed and are due: run the same command again"
    names = {variant.name for variant in able}
    is_wrong = any(not row["right"] for row in results.rows if row["case"] in names and row["stage"] == options.stage)
    return 3 if is_wrong else 0


def turns(variants: list[Variant], results: VariantResults, num_runs: int | None) -> list[Turn]:
    """What is due. Every variant has one run before any has two."""
    due = {variant.name: results.due(variant, num_runs) for variant in variants}
    rounds = range(max(map(len, due.values()), default=0))
    return [[(variant, due[variant.name][each])] for each in rounds for variant in variants if due[variant.name][each:]]


def _chosen(options: argparse.Namespace) -> list[Variant]:
    if options.variant:
        chosen = [BY_NAME[name] for name in options.variant]
    else:
        chosen = list(BY_NAME.values()) if options.variants == "all" else GROUPS[options.variants]
    return chosen if options.rank is None else [replace(variant, ranks=(options.rank,)) for variant in chosen]


def _record(variants: list[Variant], folder: Path) -> None:
    """Run each variant once, the rank rotated from one to the next, and keep what was seen of it."""
    with VariantStage() as stage:
        for number, variant in enumerate(variants):
            if missing(variant.needs):
                continue
            place = variant.ranks[number % len(variant.ranks)]
            thresholds = ASKED if variant.ending else GATES
            with recording(folder, variant, place, thresholds) as keep:
                judged = stage.run(variant, place, keep)
            print(show(variant, place, judged), file=sys.stderr, flush=True)
