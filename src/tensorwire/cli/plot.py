"""The figure of ``inspect --plot``: histograms of exponents, and the bits they take against their bound."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .._ground.text import escape
from ..codec import float_fields
from . import output

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..checkpoint import InspectReport, TensorInfo

_COLORS = {"BF16": "#2a6f97", "F32": "#d1495b", "F16": "#66a182", "F8_E4M3": "#edae49", "F8_E5M2": "#5c4d7d"}
_RARE = 1e-7
"""Shares below this are not drawn."""


def draw(report: InspectReport, image_format: str) -> bytes:
    """The figure, as "png", "svg" or "pdf". A report without any exponent is a ValueError."""
    tensors = [tensor for tensor in report.tensors if tensor.exponent_counts is not None and tensor.numel]
    if not tensors:
        raise ValueError(f"{report.path} has no tensor with exponents: there is nothing to plot")
    coded = [tensor for tensor in tensors if tensor.exponent_bits is not None]
    style = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "svg.hashsalt": "tensorwire"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(10 if coded else 6, 4.3), layout="constrained")
        figure.suptitle(_title(report))
        axes = figure.subplots(1, 2 if coded else 1, squeeze=False)[0]
        _draw_histograms(axes[0], tensors)
        if coded:
            _draw_bits(axes[1], coded)
        image = io.BytesIO()
        figure.savefig(image, format=image_format, dpi=160)
    return image.getvalue()


def _title(report: InspectReport) -> str:
    name = Path(report.path).resolve().name
    # A name is no formula: matplotlib sets what stands between two dollar signs as one.
    text = escape(name).replace("$", r"\$")
    if report.kind == "plain":
        return f"{text}: {output.size(report.nbytes)}, not compressed"
    return (
        f"{text}: ratio {report.ratio:.3f}, {output.size(report.nbytes)} stored as {output.size(report.stored_nbytes)}"
    )


def _draw_histograms(axes: Axes, tensors: list[TensorInfo]) -> None:
    """A thin outline for each tensor, a bold one for all elements of a dtype."""
    for dtype in sorted({tensor.dtype for tensor in tensors}):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        fields = float_fields(dtype)
        assert fields is not None, dtype
        sums = [0] * 256
        for tensor in same:
            counts = tensor.exponent_counts or ()
            sums = [a + b for a, b in zip(sums, counts, strict=True)]
            axes.step(*_shares(counts, fields.bias), where="mid", color=_COLORS[dtype], alpha=0.2, linewidth=0.5)
        axes.step(
            *_shares(sums, fields.bias),
            where="mid",
            color=_COLORS[dtype],
            linewidth=1.5,
            label=f"{dtype}, all elements",
        )
    axes.set_yscale("log")
    axes.set_ylim(_RARE, 1)
    _finish(axes, "Exponents (thin: each tensor)", "exponent, bias removed", "share of elements", "best")


def _shares(counts: list[int] | tuple[int, ...], bias: int) -> tuple[list[int], list[float]]:
    used = [exponent for exponent, count in enumerate(counts) if count]
    exponents = range(used[0] - 1, used[-1] + 2)  # one empty step on either side, so that the outline closes
    total = sum(counts)
    return [exponent - bias for exponent in exponents], [
        counts[exponent] / total if 0 <= exponent < len(counts) else 0.0 for exponent in exponents
    ]


def _draw_bits(axes: Axes, tensors: list[TensorInfo]) -> None:
    """Tensors in the order of the file: a mark for the bound, a dot for the bits, its area the number of elements."""
    largest = max(tensor.numel for tensor in tensors)
    bounds = [tensor.exponent_entropy or 0.0 for tensor in tensors]
    axes.scatter(range(len(tensors)), bounds, marker="_", s=40, color="#333333", label="bound: order-0 entropy")
    for dtype in sorted({tensor.dtype for tensor in tensors}):
        chosen = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        axes.scatter(
            chosen,
            [tensors[index].exponent_bits or 0.0 for index in chosen],
            s=[8 + 180 * tensors[index].numel / largest for index in chosen],
            color=_COLORS[dtype],
            alpha=0.6,
            linewidths=0,
            label=f"{dtype} (area: elements)",
        )
    axes.set_ylim(0, 1.15 * max(*bounds, *(tensor.exponent_bits or 0.0 for tensor in tensors)) or 1)
    axes.set_xlim(-0.5, len(tensors) - 0.5)
    across, up = "tensor, in the order of the file", "bits per exponent, overhead included"
    _finish(axes, "Bits against the bound", across, up, "lower right")


def _finish(axes: Axes, title: str, across: str, up: str, legend: str) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.grid(alpha=0.2)
    axes.legend(frameon=False, loc=legend)
