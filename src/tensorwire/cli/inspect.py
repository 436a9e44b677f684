"""tensorwire inspect"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from . import options, output

if TYPE_CHECKING:
    from pathlib import Path

    from ..checkpoint import InspectReport, TensorInfo


@click.command()
@click.argument("path", type=options.EXISTING_PATH)
@click.option(
    "--plot",
    type=options.NEW_PATH,
    metavar="FILE",
    help="Draw histograms of the exponents, and bits against the bound, to a .png, .svg or .pdf file. "
    "Needs pip install 'tensorwire[plot]'.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@options.threads_option
@options.json_option
def command(path: Path, plot: Path | None, force: bool, threads: int | None, as_json: bool) -> None:
    """Describe every tensor of a checkpoint, plain or compressed.

    The column bits tells what a tensor's exponents take in bits per element, headers, indexes and padding included;
    bound is the order-0 entropy of the exponents: what the best code for single exponents would take if it knew the
    tensor's histogram. A dash: stored plain, or a dtype without exponents.

    \b
    Example:
      tensorwire inspect llama.tensorwire
      tensorwire inspect model.safetensors --plot exponents.png
    """
    from ..checkpoint import inspect

    if plot is not None:
        _check_plot(plot, force)
    with output.progress("inspect") as progress:
        report = inspect(path, threads=threads, progress=progress)
    if plot is not None:
        from .plot import draw

        draw(report, plot)
    if as_json:
        output.print_json(report)
    else:
        _print(report)


def _check_plot(path: Path, force: bool) -> None:
    if find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib, which is not installed; pip install 'tensorwire[plot]'")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise click.UsageError(f"--plot: expected a name that ends with .png, .svg or .pdf, got {str(path)!r}")
    if path.exists() and not force:
        raise click.UsageError(f"--plot: {str(path)!r} exists; name another file, or pass --force to replace it")


def _print(report: InspectReport) -> None:
    bits, bound = _mean_bits(report)
    output.print_table(
        ("tensor", "dtype", ">shape", ">ratio", ">bits", ">bound"),
        [_row(tensor) for tensor in report.tensors],
        total=("all", "", "", f"{report.ratio:.3f}", output.decimals(bits), output.decimals(bound)),
    )
    print()
    output.print_line("bits: per exponent, overhead included; bound: order-0 entropy")
    output.print_line(
        f"{report.path}: {report.kind}, {output.count(len(report.tensors), 'tensor')} in "
        f"{output.count(len(report.files), 'file')}, {output.size(report.nbytes)} stored as "
        f"{output.size(report.stored_nbytes)}"
    )
    if report.kind == "compressed" and not report.restorable:
        output.print_line("note: no record of the original file: decompressing restores tensors, not its bytes")


def _row(tensor: TensorInfo) -> tuple[str, ...]:
    return (
        tensor.name,
        tensor.dtype,
        output.shape_text(tensor.shape),
        f"{tensor.ratio:.3f}" if tensor.nbytes else "-",
        output.decimals(tensor.exponent_bits),
        output.decimals(tensor.exponent_entropy),
    )


def _mean_bits(report: InspectReport) -> tuple[float | None, float | None]:
    """Bits per exponent and their bound over the tensors that are compressed; of a plain file the bound over all."""
    known = [tensor for tensor in report.tensors if tensor.exponent_entropy is not None]
    coded = [tensor for tensor in known if tensor.exponent_bits is not None]
    tensors = coded or known
    numel = sum(tensor.numel for tensor in tensors)
    if not numel:
        return None, None
    bound = sum((tensor.exponent_entropy or 0.0) * tensor.numel for tensor in tensors) / numel
    bits = sum((tensor.exponent_bits or 0.0) * tensor.numel for tensor in tensors) / numel
    return (bits if coded else None), bound
