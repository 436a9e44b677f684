"""What four wires take for a changed word, and what a page of keys and values takes, in one picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.engines.delta import JUDGED
from benchmarks.engines.kv import BF16, BOUND, LZ4, SPLITZIP, ZSTD
from benchmarks.picture import INK, OURS, drawn

if TYPE_CHECKING:
    from pathlib import Path

PICTURE = "engines.svg"
WIRES = {"ours": "tensorwire", "xor_zstd": "XOR, zstd 3", "index_value": "index + value", "dense": "all words"}
"""By key of a row of "wires"."""
PAGES = {
    "`fast`": "tensorwire, fast",
    "`compact`": "tensorwire, compact",
    "`resident`": "tensorwire, resident",
    **{name: name for name in (SPLITZIP, ZSTD, LZ4, BOUND)},
}
"""By what a row of "ratios" has as "with"."""


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw results that have both tables."""
    if not {"wires", "ratios"} <= results.keys():
        return
    step = next(row for row in results["wires"] if row["pair"] == JUDGED)
    ratios = {row["with"]: row["both, 64"] for row in results["ratios"] if row["dtype"] == BF16}
    with drawn(folder / PICTURE, panels=2) as (left, right):
        title = f"weights: bits a changed word, logarithmic\n{step['changed']:.1%} of the words changed"
        _bars(left, title, {name: step[key] for key, name in WIRES.items()}, ".3g")
        left.set(xscale="log", xlim=(1, 6 * step["dense"]))
        left.minorticks_off()
        left.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
        title = "keys and values in BF16, 64 tokens\nratio; 1 is what they take themselves"
        _bars(right, title, {name: ratios[key] for key, name in PAGES.items()}, ".3f")
        right.set(xlim=(0.95, 1.15 * max(ratios[key] for key in PAGES)))


def _bars(axis: Any, title: str, values: dict[str, float], form: str) -> None:
    """A bar for each value, from 1 on, the first one on top."""
    colors = [OURS if name.startswith("tensorwire") else INK for name in values]
    names = list(values)
    axis.barh(names, [value - 1 for value in values.values()], left=1, color=colors, height=0.6)
    for place, value in enumerate(values.values()):
        axis.annotate(
            format(value, form), (max(value, 1), place), xytext=(3, 0), textcoords="offset points", va="center"
        )
    axis.invert_yaxis()
    axis.set_title(title, loc="left", fontsize=9)
