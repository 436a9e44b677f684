"""tensorwire diff"""

from __future__ import annotations

from collections import Counter
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
@options.quiet_option
@options.json_option
def command(a: Path, b: Path, threads: int | None, quiet: bool, as_json: bool) -> int:
    """Compare the tensors of two checkpoints, by bits.

    A and B are files or directories, each plain or compressed. How tensors are spread over files does not matter; only
    if a directory has several tensors of one name are files with the same relative path compared.
    Exit code 0: equal; 3: they differ.

    \b
    Example:
      tensorwire diff llama llama.tensorwire
      tensorwire diff step-1000/model.safetensors step-2000/model.safetensors
    """
    from ..checkpoint import diff

    with output.progress("diff", quiet=quiet) as progress:
        report = diff(a, b, threads=threads, progress=progress)
    if as_json:
        output.print_json(report)
    elif not quiet:
        _print(report)
    return 0 if report.equal else FINDING


def _print(report: DiffReport) -> None:
    if report.tensors:
        columns = ("tensor", *(("file",) if report.by_file else ()), "change", "dtype", ">shape", ">differ", ">share")
        rows = [_row(tensor, report.by_file) for tensor in report.tensors]
        output.print_table(columns, rows, less_important=("shape", "dtype", "share", "file"))
        print()
    for name in report.files:
        output.print_line(f"file differs, or one side lacks it: {name}")
    if report.equal:
        output.print_line(f"equal: {output.count(report.num_equal, 'tensor')}, {report.seconds:.2f} s")
        return
    counts = Counter(tensor.status for tensor in report.tensors)
    kinds = [f"{counts[status]:,} {status}" for status in ("changed", "retyped", "removed", "added") if counts[status]]
    if counts["changed"]:
        kinds[0] += f" in {output.count(report.num_different_elements, 'element')}"
    details = f" ({', '.join(kinds)})" if kinds else ""
    output.print_line(
        f"{output.count(len(report.tensors), 'tensor')} differ{details}, {report.num_equal:,} equal; "
        f"{report.seconds:.2f} s"
    )


def _row(tensor: TensorDiff, by_file: bool) -> tuple[str, ...]:
    file = (tensor.file_a or tensor.file_b or "",) if by_file else ()
    dtype = _of_both(tensor.dtype_a, tensor.dtype_b)
    shape = _of_both(
        *(None if shape is None else output.shape_text(shape) for shape in (tensor.shape_a, tensor.shape_b))
    )
    share = f"{tensor.num_different / tensor.numel:.1%}" if tensor.numel else "-"
    return tensor.name, *file, tensor.status, dtype, shape, f"{tensor.num_different:,}", share


def _of_both(a: str | None, b: str | None) -> str:
    """What A and B have in common, or one side has, or how they differ."""
    sides = dict.fromkeys(side for side in (a, b) if side is not None)
    return " to ".join(sides)
