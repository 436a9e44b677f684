"""Figures out of benchmarks/results: rows by what stands in them, and what targets say of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.codecs import targets as codec_targets
from benchmarks.deltas import targets as delta_targets
from benchmarks.inference import targets as inference_targets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.verdicts import Verdict

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
EVALUATE = {"codecs": codec_targets.evaluate, "deltas": delta_targets.evaluate, "inference": inference_targets.evaluate}
BF16, F16, F32, IN_F32 = "minilm-bf16", "minilm-f16", "minilm-f32", "minilm-bf16-in-f32"
F8 = ("minilm-f8-e4m3", "minilm-f8-e5m2")
LARGE = "synthetic-bf16"
CODECS = {"avx2": "codecs", "avx512": "zen5-avx512/codecs"}
ZEN5 = "zen5-avx512/inference"
"""A run of older code. What was held to AVX2 took turns in groups of its own."""


@cache
def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def row(name: str, table: str, /, **wanted: object) -> dict[str, Any]:
    """The first row of a table in which all of this stands."""
    for each in results(name)[table]:
        if wanted.items() <= each.items():
            return dict(each)
    raise LookupError(f"{name}.json has no row of {wanted} in {table}")


def coded(name: str, /, *, verify: bool = True, **wanted: object) -> dict[str, Any]:
    """A row of codecs or of deltas, by the best target of the CPU: `verify` holds for what has checksums."""
    for each in results(name)["rows"]:
        if wanted.items() <= each.items() and each["verify"] in (verify, None) and "forced_cpu" not in each:
            return dict(each)
    raise LookupError(f"{name}.json has no row of {wanted}")


def epyc(data: str, codec: str, *, cpu: str = "avx2") -> dict[str, Any]:
    """A codec on a data set, with checksums if it has any; with AVX-512 as older code was measured on a Zen 5."""
    return coded(CODECS[cpu], dataset=data, codec=codec, threads=1)


def applied(what: str, pair: str, profile: str, *, verify: bool = True) -> float:
    """The part of memcpy's speed at which a delta is encoded or applied."""
    found = coded("deltas", pair=pair, codec=f"relative {profile}", verify=verify)
    return float(found[what]["vs_memcpy"])


def step(link: str, contender: str, table: str = "steps") -> dict[str, Any]:
    """A training step behind a link."""
    return row("traffic", table, link=link, contender=contender)


def turn(contender: str, what: str = "token", name: str = "inference", held_to: str | None = None) -> str:
    """Times dense torch's time, with the model 1b and two threads, in all groups that took turns, or in those that were
    held to these instructions."""
    wanted = {"contender": contender, "threads": 2} | ({} if held_to is None else {"cpu": held_to})
    found = [each for each in results(name)["turns"] if wanted.items() <= each.items() and what in each]
    return span(each[what]["vs_dense"] for each in found) if found else "-"


def alone(contender: str, model: str = "1b", name: str = "inference") -> dict[str, Any]:
    """One that has the machine alone: seconds, and the gigabytes of its peak beyond its imports."""
    found = row(name, "alone", model=model, contender=contender)
    return found | {"gigabytes": found["peak_nbytes"] / 1e9}


@cache
def verdicts(kind: str, name: str) -> list[Verdict]:
    return EVALUATE[kind](results(name))


def met(kind: str, name: str | None = None) -> str:
    """How many targets were met, as `72 of 116`."""
    found = [each.met for each in verdicts(kind, name or kind) if each.met is not None]
    return f"{sum(found)} of {len(found)}"


def span(values: Iterable[float], form: str = ".2f") -> str:
    """The least and the greatest, as `0.45 to 0.9`; once if they read the same."""
    found = sorted(values)
    least, most = f"{found[0]:{form}}", f"{found[-1]:{form}}"
    return least if least == most else f"{least} to {most}"
