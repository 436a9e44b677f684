"""Loss curves as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.picture import drawn
from benchmarks.traffic.loss import FULL, RUNS

if TYPE_CHECKING:
    from pathlib import Path

NAME = "traffic-loss.svg"


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Validation loss by step, the first seed of each run."""
    with drawn(path) as axis:
        for name in RUNS:
            curve = next(row["curve"] for row in rows if row["run"] == name)[: FULL["steps"] // FULL["every"]]
            steps = [FULL["every"] * (place + 1) for place in range(len(curve))]
            axis.plot(steps, curve, label=name, linewidth=1)
        axis.set_xlabel("step")
        axis.set_ylabel("validation loss, nats")
        axis.legend(frameon=False)
