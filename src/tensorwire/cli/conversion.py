"""What compress, decompress and transcode have in common: they write a checkpoint and report its files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from .._text import escape
from . import output
from .failures import FINDING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from ..checkpoint import CheckpointReport, FileReport


def convert(operation: Callable[..., CheckpointReport], src: Path, dst: Path, *, as_json: bool, **options: Any) -> int:
    """Run `operation`, print its report and return the exit code. `options` are passed on."""
    if not dst.parent.is_dir():
        advice = "make it first, or name another DST"
        raise click.UsageError(f"no directory {str(dst.parent)!r}: {advice}", click.get_current_context())
    title = operation.__name__.removesuffix("_checkpoint")
    try:
        with output.progress(title) as progress:
            report = operation(src, dst, progress=progress, **options)
    except KeyboardInterrupt:
        partial = dst.with_name(f"{dst.name}.partial")
        if not options["dry_run"] and partial.is_dir():
            name = escape(str(partial))
            print(f"{name} holds what is done: the same command goes on with it.", file=sys.stderr)
        raise
    if as_json:
        output.print_json(report)
    else:
        _print(report, dst)
    return FINDING if report.changed else 0


def _print(report: CheckpointReport, dst: Path) -> None:
    uncompressed = report.nbytes_out if report.action == "decompress" else report.nbytes_in
    if len(report.files) > 1:
        rows = [_row(report, file) for file in report.files]
        total = ("total", "", output.size(report.nbytes_in), output.size(report.nbytes_out), f"{report.ratio:.3f}")
        columns = ("file", "content", ">before", ">after", ">ratio")
        output.print_table(columns, rows, total=total, less_important=("content", "before", "ratio"))
        print()
    output.print_line(
        f"{'would write' if report.dry_run else 'wrote'} {dst}: {output.size(report.nbytes_in)} to "
        f"{output.size(report.nbytes_out)}, ratio {report.ratio:.3f}, {report.seconds:.2f} s"
        + ("" if report.action == "transcode" else f" ({output.speed(uncompressed, report.seconds)})")
    )
    if not report.exact and not report.changed:
        output.print_line("note: SRC has no record of its original file: tensors are restored, its header is new")
    for file in report.changed:
        output.print_line(f"note: {file.message}")
    for name in report.excluded:
        advice = "; --exclude '!.git' includes it" if report.action == "compress" and name.endswith(".git/") else ""
        when = "" if report.action == "compress" else " when it was compressed"
        output.print_line(f"note: left out{when}: {name}{advice}")
    for name in report.ignored:
        output.print_line(f"note: not carried over, the manifest does not know it: {name}")
    for notice in report.notices:
        output.print_line(f"note: {notice}")


def _row(report: CheckpointReport, file: FileReport) -> tuple[str, ...]:
    content = file.kind
    ratio = ""
    if file.kind == "safetensors":
        content = f"{file.num_compressed} of {output.count(file.num_tensors, 'tensor')}"
        before, after = file.nbytes_in, file.nbytes_out
        if report.action == "decompress":
            before, after = after, before
        ratio = f"{before / after:.3f}" if after else ""
    if file.resumed:
        content += ", resumed"
    return file.path, content, output.size(file.nbytes_in), output.size(file.nbytes_out), ratio
