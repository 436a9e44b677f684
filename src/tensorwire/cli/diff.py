"""tensorwire diff"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options, output
from .failures import FINDING

if TYPE_CHECKING:
    from ..checkpoint import ChangedWords, DeltaStats, DiffReport, DtypeStats, TensorDiff


@click.command()
@click.argument("a", type=options.EXISTING_PATH)
@click.argument("b", type=options.EXISTING_PATH)
@options.base_option
@click.option(
    "--stats",
    is_flag=True,
    help="Also print how much changed, by dtype and by exponent of A, and what a delta from A to B would take.",
)
@options.threads_option
@options.quiet_option
@options.json_option
def command(
    a: Path, b: Path, base: tuple[Path, ...] | None, stats: bool, threads: int | None, quiet: bool, as_json: bool
) -> int:
    """Compare the tensors of two checkpoints, by bits.

    A and B are files or directories, each plain or compressed. How tensors are spread over files does not matter. If a
    directory has several tensors of one name, files with the same relative path are compared.

    With --stats B is encoded relative to A. The table of dtypes has the share of words that changed, and the bits of
    the delta for each of these. The table of exponents has the least bits that a code takes if it knows the exponent
    of A: for the positions of changed words, and for the steps by which they changed.

    Exit code 0: equal; 3: they differ.

    \b
    Example:
      tensorwire diff llama llama.tensorwire
      tensorwire diff step-1000/model.safetensors step-2000/model.safetensors
      tensorwire diff step-1000 step-2000 --stats
    """
    from ..checkpoint import diff

    with output.progress("diff", quiet=quiet) as progress:
        report = diff(a, b, base=base, stats=stats, threads=threads, progress=progress)
    if as_json:
        output.print_json(report)
    elif not quiet:
        _print(report)
        if report.stats is not None:
            _print_stats(report.stats)
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
    differ = f"{output.count(len(report.tensors), 'tensor')} {'differs' if len(report.tensors) == 1 else 'differ'}"
    output.print_line(f"{differ}{details}, {report.num_equal:,} equal; {report.seconds:.2f} s")


def _print_stats(stats: DeltaStats) -> None:
    profiles = list(stats.delta_nbytes)
    both = " / ".join(profiles)
    print()
    output.print_table(
        ("dtype", ">words", ">changed", ">share", ">size", *(f">{name}" for name in profiles), f">bits/change: {both}"),
        [
            (
                row.dtype,
                *_changed(row),
                output.size(row.nbytes),
                *(output.size(row.delta_nbytes[name]) for name in profiles),
                " / ".join(output.decimals(bits, 2) for bits in (row.bits_per_change or {}).values()) or "-",
            )
            for row in stats.dtypes
        ],
        less_important=("words", "changed"),
    )
    classes = [row for row in stats.words if row.exponent is not None and row.num_changed]
    if classes:
        print()
        output.print_table(
            ("dtype", ">exponent", ">words", ">changed", ">share", ">positions", ">steps"),
            [
                (
                    row.dtype,
                    str(row.exponent),
                    *_changed(row),
                    output.decimals(row.position_bits, 2),
                    output.decimals(row.step_bits, 2),
                )
                for row in classes
            ],
            less_important=("words", "changed"),
        )
        print()
        output.print_line("exponent: of A, as it is stored; positions, steps: entropy in bits for each changed word")
    sizes = ", ".join(f"{output.size(nbytes)} {name}" for name, nbytes in stats.delta_nbytes.items())
    output.print_line(f"a delta from A to B: {sizes}, for {output.size(stats.nbytes)} of tensors")


def _changed(row: DtypeStats | ChangedWords) -> tuple[str, str, str]:
    return f"{row.num_words:,}", f"{row.num_changed:,}", f"{row.share:.3%}"


def _row(tensor: TensorDiff, by_file: bool) -> tuple[str, ...]:
    file = (tensor.file_a or tensor.file_b or "",) if by_file else ()
    dtype = _of_both(tensor.dtype_a, tensor.dtype_b)
    shape = _of_both(
        *(None if shape is None else output.shape_text(shape) for shape in (tensor.shape_a, tensor.shape_b))
    )
    share = f"{tensor.num_different / tensor.numel:.1%}" if tensor.numel else "-"
    return tensor.name, *file, tensor.status, dtype, shape, f"{tensor.num_different:,}", share


def _of_both(a: str | None, b: str | None) -> str:
    """The value of both sides or of the only one, or "a to b"."""
    sides = dict.fromkeys(side for side in (a, b) if side is not None)
    return " to ".join(sides)
