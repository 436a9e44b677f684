"""Shared by compress, decompress, transcode and convert: they write checkpoints and report their files."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .._ground.text import escape
from . import output as printing
from .failures import FINDING
from .hub import advice_on
from .options import STANDARD_STREAM, as_written, standard_input, standard_output
from .targets import targets

if TYPE_CHECKING:
    from typing import Any, Literal

    from ..checkpoint import CheckpointReport, FileReport
    from ..storage.locations import Location

    Operation = Callable[..., CheckpointReport]
    Action = Literal["compress", "decompress", "transcode"]

_STANDARD_OUTPUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def convert(
    action: Action,
    operation: Operation,
    *,
    beside: Callable[[Location], Path] | None,
    places: Sequence[Location],
    output: Location | None,
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> int:
    """Run `operation`, the function for `action`, on each SRC, print the reports and return the exit code.

    `places` are the arguments, `output` is DST as an option. `beside` gives the place of a result without DST; without
    `beside` DST must be given.
    """
    sources, dst = _sources_and_dst(places, output)
    if dst is None and beside is None:
        raise click.UsageError("Missing argument 'DST'.")
    if dst is None and sources[0] == STANDARD_STREAM:
        dst = STANDARD_STREAM
    if isinstance(dst, Path) and not dst.parent.is_dir():
        raise click.UsageError(f"no directory {str(dst.parent)!r}: make it first, or name another DST")
    if dst is not None and STANDARD_STREAM in (sources[0], dst):
        return _convert_stream(action, operation, sources[0], dst, as_json=as_json, quiet=quiet, **settings)
    results = targets(sources, None if dst is None else as_written(dst), beside)
    if len(sources) > 1:
        _check_sources(action, sources, settings.get("exclude", ()))
    if len(sources) > 1 and isinstance(dst, Path):
        dst.mkdir(exist_ok=True)
    reports = []
    for source, result in zip(sources, results, strict=True):
        report = _convert_one(action, operation, source, result, quiet, settings)
        reports.append(report)
        done = "made parts of" if settings.get("files") else "wrote"
        _print(report, as_json=False, quiet=quiet or as_json, done=done)
    if as_json:
        _print_json(reports)
    return FINDING if any(report.changed for report in reports) else 0


def _sources_and_dst(places: Sequence[Location], output: Location | None) -> tuple[list[Location], Location | None]:
    sources, dst = list(places), output
    if dst is None and len(sources) > 1:
        dst = sources.pop()
        if len(sources) > 1 and dst.is_file():
            advice = "name a directory for the results, as in -o DIR"
            raise click.UsageError(f"{str(dst)!r} is a file, and there are several SRC: {advice}")
    check_given(sources)
    if dst is not None and str(dst) in _STANDARD_OUTPUT:
        raise click.UsageError(f"{str(dst)!r} is standard output: write '-'")
    if len(sources) > 1 and STANDARD_STREAM in (*sources, dst):
        raise click.UsageError("'-' stands for one file: give one SRC and one DST")
    return sources, dst


def check_given(sources: Sequence[Location]) -> None:
    """Raise click.UsageError for a SRC that does not exist, or is a pipe."""
    for source in sources:
        if source != STANDARD_STREAM and not source.exists():
            text = f"Path {str(source)!r} does not exist{advice_on(source) or '.'}"
            raise click.BadParameter(text, param_hint="'SRC'")
        if source != STANDARD_STREAM and source.is_fifo():
            raise click.UsageError(f"{str(source)!r} is a pipe: read it as '-', as in '- < {source}'")


def _check_sources(action: Action, sources: Sequence[Location], exclude: Sequence[str]) -> None:
    """Look at all of several SRC before the first result is written."""
    from ..checkpoint.operations.conversion import check_source

    for source in sources:
        check_source(action, source, exclude=exclude)


def _convert_one(
    action: Action, operation: Operation, source: Location, dst: Location, quiet: bool, settings: dict[str, Any]
) -> CheckpointReport:
    try:
        with printing.progress(action, quiet=quiet) as progress:
            return operation(source, dst, progress=progress, **settings)
    except KeyboardInterrupt:
        partial = dst.with_name(f"{dst.name}.partial") if isinstance(dst, Path) else Path(tempfile.gettempdir())
        if partial.is_dir():
            name = escape(str(partial))
            print(f"{name} holds what is done: the same command goes on with it.", file=sys.stderr)
        raise


def _convert_stream(
    action: Action,
    operation: Operation,
    source: Location,
    dst: Location,
    *,
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> int:
    from ..checkpoint.operations.stream import convert_stream

    to_stdout = dst == STANDARD_STREAM
    for option in ("exclude", "files", "strict"):
        if settings.get(option):
            raise click.UsageError(f"--{option} is for directories: '-' is one file")
    if as_json and to_stdout:
        raise click.UsageError("--json and DST '-' both need standard output: name a file as DST")
    with printing.progress(action, quiet=quiet) as progress:
        report = convert_stream(
            operation,
            standard_input() if source == STANDARD_STREAM else source,
            standard_output(force=settings["force"]) if to_stdout else dst,
            progress=progress,
            **settings,
        )
    with redirect_stdout(sys.stderr) if to_stdout else nullcontext():
        _print(report, as_json=as_json, quiet=quiet)
    return 0


def apply(operation: Operation, source: Location, base: Path, *, as_json: bool, quiet: bool, **settings: Any) -> int:
    """Change `base` in place, print the report and return the exit code."""
    with printing.progress("apply", quiet=quiet) as progress:
        report = operation(source, base, progress=progress, **settings)
    _print(report, as_json=as_json, quiet=quiet, done="changed")
    return FINDING if report.changed else 0


def convert_in_place(
    operation: Operation, places: Sequence[Location], *, as_json: bool, quiet: bool, **settings: Any
) -> int:
    """Run `operation` on each SRC, which becomes its own result, print the reports and return the exit code."""
    check_given(places)
    if STANDARD_STREAM in places:
        raise click.UsageError("'-' is a stream, which is not changed in place: name a file")
    reports = []
    for source in places:
        try:
            with printing.progress("replace", quiet=quiet) as progress:
                report = operation(source, progress=progress, **settings)
        except KeyboardInterrupt:
            text = "each file is the old or the new one, and the same command does the rest"
            print(f"{escape(str(source))}: {text}", file=sys.stderr)
            raise
        reports.append(report)
        _print(report, as_json=False, quiet=quiet or as_json, done="compressed in place")
    if as_json:
        _print_json(reports)
    return 0


def _print_json(reports: Sequence[CheckpointReport]) -> None:
    printing.print_json(reports[0] if len(reports) == 1 else {"results": reports})


def convert_distributed(
    operation: Operation, source: Location, dst: Location, *, as_json: bool, quiet: bool, **settings: Any
) -> int:
    """Write what a distributed checkpoint holds, print the report and return the exit code."""
    with printing.progress("convert", quiet=quiet) as progress:
        report = operation(source, as_written(dst), progress=progress, **settings)
    _print(report, as_json=as_json, quiet=quiet)
    return 0


def _print(report: CheckpointReport, *, as_json: bool, quiet: bool, done: str = "wrote") -> None:
    """Print a table of files if there are several, a line about all of them, and notes. `done` is the verb."""
    if as_json:
        printing.print_json(report)
    if as_json or quiet:
        return
    restores = report.action in ("decompress", "apply", "convert")
    before, after, ratio = printing.size(report.nbytes_in), printing.size(report.nbytes_out), f"{report.ratio:.3f}"
    if len(report.files) > 1:
        columns = ("file", "content", ">before", ">after", ">ratio")
        rows = [_row(report, file) for file in report.files]
        total = ("total", "", before, after, ratio)
        printing.print_table(columns, rows, total=total, less_important=("content", "before", "ratio"))
        print()
    dst = "standard output" if report.dst == "-" else report.dst
    if report.action == "apply" and all(file.resumed for file in report.files):
        printing.print_line(f"nothing to change: {dst} is what {report.src} leads to")
    elif report.action == "replace" and not report.files:
        printing.print_line(f"nothing to change: {dst} is compressed already")
    else:
        speed = printing.speed(report.nbytes_out if restores else report.nbytes_in, report.seconds)
        took = f"{report.seconds:.2f} s" + ("" if report.action == "transcode" else f" ({speed})")
        printing.print_line(f"{done} {dst}: {before} to {after}, ratio {ratio}, {took}")
    notes = printing.first([file.message for file in report.changed], "file")
    if not report.exact and not report.changed:
        notes.append(
            "SRC has no record of its original file: DST is a safetensors file with its tensors, under a new header"
        )
    if report.base is not None and not restores and not any(file.num_relative for file in report.files):
        notes.append(
            f"nothing is relative to {report.base}: it has no tensor of the same name or content, dtype and size"
        )
    notes += left_out(report.excluded, by_this_run=report.action in ("compress", "replace"))
    notes += printing.first(report.ignored, "path", "not carried over, since the manifest does not list it: {}".format)
    notes += printing.first(report.notices, "note")
    for note in notes:
        printing.print_line(f"note: {note}")


def left_out(paths: Sequence[str], *, by_this_run: bool = True) -> list[str]:
    """A note for each of the files and directories that the result does not hold."""

    def note(path: str) -> str:
        if not by_this_run:
            return f"left out when it was compressed: {path}"
        return f"left out: {path}" + ("; --exclude '!.git' includes it" if path.endswith(".git/") else "")

    return printing.first(paths, "path", note)


def _row(report: CheckpointReport, file: FileReport) -> tuple[str, ...]:
    content = file.kind
    ratio = ""
    if file.kind in ("safetensors", "torch"):
        content = f"{file.num_compressed} of {printing.count(file.num_tensors, 'tensor')}"
        if file.num_relative:
            content += f", {file.num_relative:,} relative"
        before, after = file.nbytes_in, file.nbytes_out
        if report.action in ("decompress", "apply", "convert"):
            before, after = after, before
        ratio = f"{before / after:.3f}" if after else ""
    if file.resumed:
        content += ", already there" if report.action == "apply" else ", resumed"
    return file.path, content, printing.size(file.nbytes_in), printing.size(file.nbytes_out), ratio
