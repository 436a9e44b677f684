"""What "auto" costs where no codec pays, and when it sees that the rate of the links has changed."""

from __future__ import annotations

from math import exp, log, sqrt
from statistics import mean, stdev
from typing import Any

from benchmarks import gpt, job
from benchmarks.tables import Row, Table
from benchmarks.traffic.sharded import Trained, trained_gpt
from benchmarks.traffic.steps import LAYERS, PEAK, ROWS, WIDTH, name_of
from tensorwire.torch import traffic
from tests.support import links

# Pairs go on while the interval is wider than it should be, which is a part of the time of a step.
FULL = {"layers": LAYERS, "warm_up": gpt.WARM_UP, "settle": 15, "pairs": (40, 400), "width": 0.03, "steps": 25}
QUICK = {"layers": 1, "warm_up": 2, "settle": 6, "pairs": (2, 2), "width": 1.0, "steps": 12}
SLOW = 50.0  # Mbit/s


def measure(quick: bool) -> list[Row]:
    rows: list[Row] = job.run(rank, QUICK if quick else FULL, linked=True)
    return rows


def rank(settings: Any) -> list[Row]:
    plain, ours = (trained_gpt(settings["layers"], WIDTH, ROWS) for _ in range(2))
    for model in (plain, ours):
        for step in range(settings["warm_up"]):
            model.step(gpt.rate_at(step + 1, PEAK))
    with_auto = traffic.attach_fsdp(ours.model, weights="auto")
    rows = [_paired(plain, ours, settings)]
    for before, after in ((SLOW, None), (None, SLOW)):
        rows.append(_changed(ours, before, after, settings["steps"]))
    with_auto.detach()
    return rows


def _paired(plain: Trained, ours: Trained, settings: dict[str, Any]) -> Row:
    """Without shaping, first one and then the other; all ranks stop at the same pair, since all know the same times."""
    job.set_rate(None)
    for _ in range(settings["settle"]):
        ours.step(PEAK)
    least, most = settings["pairs"]
    ratios: list[float] = []
    half = centre = float("inf")
    while len(ratios) < least or (2 * half > settings["width"] and len(ratios) < most):
        order = (plain, ours) if len(ratios) % 2 else (ours, plain)
        seconds = {id(model): _seconds(model) for model in order}
        ratios.append(log(seconds[id(ours)] / seconds[id(plain)]))  # the mean of quotients themselves is above 1
        half = 1.96 * stdev(ratios) / sqrt(len(ratios)) if len(ratios) > 1 else half
        centre = exp(mean(ratios))
        if len(ratios) % 10 == 0:
            job.say(f"{len(ratios)} pairs, {centre:.3f} +- {half:.3f}")
    row = {"what": "not shaped, paired steps", "pairs": len(ratios), "ratio": centre}
    return row | {"interval": [centre * exp(-half), centre * exp(half)]}


def _seconds(model: Trained) -> float:
    return job.measured(lambda: model.step(PEAK), lambda: 0)["seconds"]


def _changed(ours: Trained, before: float | None, after: float | None, steps: int) -> Row:
    """The rate changes after so many steps; the steps behind it at which ranks have another codec, least and most."""
    job.set_rate(before)
    for _ in range(steps):
        ours.step(PEAK)
    first = _codecs(ours)
    job.set_rate(after)
    switched = 0  # never
    for step in range(1, steps + 1):
        ours.step(PEAK)
        if _codecs(ours) != first and not switched:
            switched = step
    found = job.of_all(switched)
    return {
        "what": f"{name_of(before)} to {name_of(after)}",
        "before": first,
        "after": _codecs(ours),
        "switched": [min(found), max(found)] if all(found) else None,
    }


def _codecs(model: Trained) -> str:
    return ", ".join(sorted({row.codec for row in model.rows()}))


TABLE = Table(
    "auto",
    "A codec that switches itself",
    'The model of the steps above, with `weights="auto"`. First steps without and with it in pairs, not shaped: the '
    "geometric mean of the quotients, and its 95 % interval. Then the rate of the links changes during the run: so "
    "many steps later the first and the last rank had switched.",
    (
        ("what", "what", ""), ("pairs", "pairs", "d"), ("time of FSDP2", "ratio", ".3f"),
        ("interval", "interval", ".3f"), ("codec before", "before", ""), ("codec after", "after", ""),
        ("switched after", "switched", "d"),
    ),
    measure,
    missing=links.missing,
)  # fmt: skip
