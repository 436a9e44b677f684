"""Loss curves as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.traffic.loss import FULL, RUNS

if TYPE_CHECKING:
    from pathlib import Path

NAME = "traffic-loss.svg"
INK = "#777777"  # legible on a light page and on a dark one


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Validation loss by step, the first seed of each run."""
    import matplotlib as mpl

    mpl.use("Agg")
    colored = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style = {"svg.hashsalt": "tensorwire", "svg.fonttype": "none", "font.size": 9, **dict.fromkeys(colored, INK)}
    with mpl.rc_context(style):
        _draw(rows, path)


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for name in RUNS:
        curve = next(row["curve"] for row in rows if row["run"] == name)[: FULL["steps"] // FULL["every"]]
        steps = [FULL["every"] * (place + 1) for place in range(len(curve))]
        axis.plot(steps, curve, label=name, linewidth=1)
    axis.set_xlabel("step")
    axis.set_ylabel("validation loss, nats")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)
