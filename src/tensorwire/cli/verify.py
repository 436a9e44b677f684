"""tensorwire verify"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .._ground.text import escape
from ..errors import BaseMismatchError
from . import options, output
from .failures import BAD_DATA, FINDING

if TYPE_CHECKING:
    from ..checkpoint import VerifyReport


@click.command()
@click.argument("path", type=options.EXISTING_PATH_OR_STREAM)
@options.base_option
@options.strict_option
@options.threads_option
@options.quiet_option
@options.json_option
def command(
    path: Path, base: tuple[Path, ...] | None, strict: bool, threads: int | None, quiet: bool, as_json: bool
) -> int:
    """Decode everything and check it.

    Checks the checksums of headers and blocks, the hash of each tensor's content and, where it is recorded, the
    SHA-256 of each original file. Prints the first 20 problems on standard error, a line for each. PATH "-" is
    standard input, for one .safetensors file. Without --base the content of tensors that are relative to a base is
    not checked, only their blocks are.

    Exit code 0: nothing is wrong; 1: something is damaged; 3: files beside the tensors were edited or are missing.

    \b
    Example:
      tensorwire verify llama.tensorwire
      tensorwire verify delta --base step-1000
    """
    from ..checkpoint import verify

    with options.readable(path) as location, output.progress("verify", quiet=quiet) as progress:
        report = verify(location, base=base, strict=strict, threads=threads, progress=progress)
        if location != path:
            report = _of_stream(report, location)
    if as_json:
        output.print_json(report)
    else:
        _print(report, base or (), quiet)
    if not report.ok:
        return BAD_DATA
    return FINDING if report.changed else 0


def _of_stream(report: VerifyReport, location: Path) -> VerifyReport:
    """The report of a temporary file as that of the stream that was put into it."""
    problems = [
        replace(problem, message=problem.message.replace(str(location), options.STDIN_NAME), file=options.STDIN_NAME)
        for problem in report.problems
    ]
    return replace(report, path=str(options.STANDARD_STREAM), problems=tuple(problems))


def _print(report: VerifyReport, base: tuple[Path, ...], quiet: bool) -> None:
    for line in output.first([problem.message for problem in report.problems], "problem"):
        print(f"tensorwire: {escape(line)}", file=sys.stderr)
    if quiet:
        return
    notes = output.first([file.message for file in report.changed], "file")
    notes += output.first(report.ignored, "path", "not checked, since no manifest lists it: {}".format)
    for note in notes:
        output.print_line(f"note: {note}")
    content = f"{output.count(report.num_tensors, 'tensor')} in {output.count(report.num_files, 'file')}"
    if report.kind == "compressed" and not report.num_unchecked:
        content += f", {output.size(report.nbytes)}, {report.seconds:.2f} s"
        content += f" ({output.speed(report.nbytes, report.seconds)})"
    if base and report.problems and all(problem.kind == BaseMismatchError.__name__ for problem in report.problems):
        named = f"{' and '.join(map(str, base))} {'is' if len(base) == 1 else 'are'}"
        verdict = f"{named} not the base of {output.count(len(report.problems), 'tensor')}"
    elif report.problems:
        verdict = f"damaged: {output.count(len(report.problems), 'problem')}"
    elif report.changed:
        verdict = f"all tensors are ok; {output.count(len(report.changed), 'other file')} edited or missing"
    elif report.kind == "plain":
        verdict = "plain; the structure is ok, there are no checksums to check the data against"
    elif report.num_unchecked:
        verdict = f"ok; checksums; the content of {output.count(report.num_unchecked, 'tensor')} needs --base"
    else:
        verdict = "ok; checksums and SHA-256 of the original files" if report.exact else "ok; checksums"
        if report.num_plain:
            verdict += f"; {output.count(report.num_plain, 'tensor')} in plain files have none"
    output.print_line(f"{report.path}: {verdict}")
    output.print_line(content)
