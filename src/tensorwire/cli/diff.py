"""tensorwire diff"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options, output
from .failures import FINDING

if TYPE_CHECKING:
    from pathlib import Path

    from ..checkpoint import DiffReport, TensorDiff


@click.command()
@click.argument("a", type=options.EXISTING_PATH)
@click.argument("b", type=options.EXISTING_PATH)
@options.threads_option
@options.json_option
def command(a: Path, b: Path, threads: int | None, as_json: bool) -> int:
    """Compare the tensors of two checkpoints, by bits.

    A and B are files or directories, each plain or compressed; how tensors are spread over files does not matter.
    Exit code 0: equal; 3: they differ.

    \b
    Example:
      tensorwire diff llama llama.tensorwire
      tensorwire diff step-1000/model.safetensors step-2000/model.safetensors
    """
    from ..checkpoint import diff

    with output.progress("diff") as progress:
        report = diff(a, b, threads=threads, progress=progress)
    if as_json:
        output.print_json(report)
    else:
        _print(report)
    return 0 if report.equal else FINDING


def _print(report: DiffReport) -> None:
    if report.tensors:
        columns = ("tensor", "change", "A", "B", ">elements", ">differ", ">first")
        output.print_table(columns, [_row(tensor) for tensor in report.tensors])
        print()
    for name in report.files:
        output.print_line(f"file differs: {name}")
    if report.equal:
        output.print_line(f"equal: {output.count(report.num_equal, 'tensor')}, {report.seconds:.2f} s")
        return
    output.print_line(
        f"{output.count(len(report.tensors), 'tensor')} differ, {report.num_equal:,} equal; "
        f"{output.count(report.num_different_elements, 'element')} differ; {report.seconds:.2f} s"
    )


def _row(tensor: TensorDiff) -> tuple[str, ...]:
    sides = [
        "-" if dtype is None else f"{dtype} {output.shape_text(shape)}"
        for dtype, shape in ((tensor.dtype_a, tensor.shape_a), (tensor.dtype_b, tensor.shape_b))
    ]
    if tensor.status == "changed":
        sides[1] = "same"
    first = "-" if tensor.first_different is None else f"{tensor.first_different:,}"
    return tensor.name, tensor.status, *sides, f"{tensor.numel:,}", f"{tensor.num_different:,}", first
