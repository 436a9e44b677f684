"""Pictures of results: one style, whose text stays text and is legible on a light page and on a dark one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INK, OURS = "#6e7781", "#e5534b"


@contextmanager
def drawn(path: Path, panels: int = 1) -> Iterator[Any]:
    """The axes to draw on, or of several panels beside each other their axes, which are written to `path` in the end.
    The same data give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colored = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style = {"svg.hashsalt": "tensorwire", "svg.fonttype": "none", "font.size": 9, **dict.fromkeys(colored, INK)}
    with mpl.rc_context(style):
        figure, axes = plt.subplots(1, panels, figsize=(7, 4) if panels == 1 else (9, 3), layout="constrained")
        yield axes
        for axis in figure.axes:
            axis.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None}, transparent=True)
        plt.close(figure)
