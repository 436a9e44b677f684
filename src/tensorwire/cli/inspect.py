"""tensorwire inspect"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .._ground.new_file import NewFile
from . import options, output

if TYPE_CHECKING:
    from ..checkpoint import InspectReport, TensorInfo

_SORT_KEYS = ("name", "dtype", "size", "ratio", "bits", "bound")
_SHOWN_DIGITS = 8
_NUMBER = re.compile(r"\d+")


@click.command()
@click.argument("path", type=options.EXISTING_PATH_OR_STREAM)
@click.option("--summary", is_flag=True, help="Print one row for all tensors whose names differ in numbers only.")
@click.option(
    "--sort",
    type=options.Choice(_SORT_KEYS),
    metavar="KEY",
    help=f"Sort the rows by {', '.join(_SORT_KEYS[:-1])} or {_SORT_KEYS[-1]}; numbers: largest first. "
    "By default rows stand in the order of the files.",
)
@click.option(
    "patterns",
    "--filter",
    multiple=True,
    metavar="PATTERN",
    help="Take only the tensors whose name matches, as in --filter '*.norm.*'; may be repeated.",
)
@click.option(
    "--plot",
    type=options.NEW_PATH,
    metavar="FILE",
    help="Draw histograms of the exponents, and bits against the bound, to a .png, .svg or .pdf file. "
    "Needs matplotlib.",
)
@options.base_option
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
@options.threads_option
@options.json_option
def command(
    path: Path,
    summary: bool,
    sort: str | None,
    patterns: tuple[str, ...],
    plot: Path | None,
    base: tuple[Path, ...] | None,
    force: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Describe every tensor of a checkpoint, plain or compressed.

    Column bits: the bits of the file that each exponent takes, with headers, indexes and padding. Column bound: the
    bits that the best code for single exponents takes, which is their order-0 entropy. A dash stands for a tensor that
    is stored plain, for one that is relative to a base, and for a dtype without exponents. A column of dashes alone is
    left out. PATH "-" is standard input.

    Column base, for relative tensors: the first digits of the hash that the base's tensor must have, and its name if
    it differs. With --base it says whether OLD has that tensor.

    \b
    Example:
      tensorwire inspect llama.tensorwire --summary --sort size
      tensorwire inspect delta --base step-1000
      tensorwire inspect llama --filter '*.mlp.*' --plot exponents.png
    """
    from ..checkpoint import inspect

    figure = None if plot is None else _plot_file(plot, force)
    with options.readable(path) as location, output.progress("inspect") as progress:
        report = inspect(location, names=patterns, base=base, threads=threads, progress=progress)
    if location != path:
        tensors = tuple(replace(tensor, file=options.STDIN_NAME) for tensor in report.tensors)
        report = replace(report, path=str(path), files=(options.STDIN_NAME,), tensors=tensors)
    if plot is not None and figure is not None:
        from .plot import draw

        figure.write(draw(report, plot.suffix.removeprefix(".")))
    rows = _groups(report.tensors) if summary else [_row([tensor], tensor.name) for tensor in report.tensors]
    if sort is not None:
        rows.sort(key=lambda row: row.sort_key(sort))
    if not as_json:
        _print(report, rows, summary)
    elif summary:
        groups = [_without_tensors(vars(row)) for row in rows]
        output.print_json({**_without_tensors(output.members(report)), "groups": groups})
    else:
        output.print_json(replace(report, tensors=tuple(tensor for row in rows for tensor in row.tensors)))


def _plot_file(path: Path, force: bool) -> NewFile:
    options.require("matplotlib", "--plot", "plot")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise click.UsageError(f"--plot: expected a name that ends with .png, .svg or .pdf, got {str(path)!r}")
    if not path.parent.is_dir():
        raise click.UsageError(f"--plot: no directory {str(path.parent)!r}: make it first, or name another file")
    return NewFile(path, force=force, example="plot.png")


@dataclass(frozen=True)
class _Row:
    """A row of the table: one tensor, or several of one dtype; with --json, a group.

    The bits and the entropy of exponents are means over the elements of the compressed tensors. Without one, the
    entropy is that of all.
    """

    name: str
    dtype: str
    num_tensors: int
    numel: int
    nbytes: int
    stored_nbytes: int
    ratio: float | None
    exponent_bits: float | None
    exponent_entropy: float | None
    tensors: Sequence[TensorInfo]

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(map(output.decimals, (self.ratio, self.exponent_bits, self.exponent_entropy)))

    def sort_key(self, key: str) -> str | float:
        value = getattr(self, {"size": "nbytes", "bits": "exponent_bits", "bound": "exponent_entropy"}.get(key, key))
        return value if isinstance(value, str) else float("inf") if value is None else -value


def _row(tensors: Sequence[TensorInfo], name: str) -> _Row:
    nbytes = sum(tensor.nbytes for tensor in tensors)
    stored_nbytes = sum(tensor.stored_nbytes for tensor in tensors)
    return _Row(
        name,
        " ".join(dict.fromkeys(tensor.dtype for tensor in tensors)),
        len(tensors),
        sum(tensor.numel for tensor in tensors),
        nbytes,
        stored_nbytes,
        nbytes / stored_nbytes if stored_nbytes else None,
        *_mean_bits(tensors),
        tensors,
    )


def _without_tensors(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name != "tensors"}


def _groups(tensors: Iterable[TensorInfo]) -> list[_Row]:
    """The tensors of one dtype whose names differ in numbers only, "layers.*.weight", as one row."""
    groups: dict[tuple[str, str], list[TensorInfo]] = {}
    for tensor in tensors:
        groups.setdefault((_NUMBER.sub("*", tensor.name), tensor.dtype), []).append(tensor)
    return [_row(group, group[0].name if len(group) == 1 else pattern) for (pattern, _), group in groups.items()]


def _mean_bits(tensors: Iterable[TensorInfo]) -> tuple[float | None, float | None]:
    known = [tensor for tensor in tensors if tensor.exponent_entropy is not None]
    coded = [tensor for tensor in known if tensor.exponent_bits is not None]
    chosen = coded or known
    numel = sum(tensor.numel for tensor in chosen)
    if not numel:
        return None, None
    bound = sum((tensor.exponent_entropy or 0.0) * tensor.numel for tensor in chosen) / numel
    bits = sum((tensor.exponent_bits or 0.0) * tensor.numel for tensor in chosen) / numel
    return (bits if coded else None), bound


def _print(report: InspectReport, rows: list[_Row], summary: bool) -> None:
    total = _row(report.tensors, "all")
    known = [number for number in range(3) if number == 0 or any(row.numbers[number] != "-" for row in [*rows, total])]
    columns = [(">ratio", ">bits", ">bound")[number] for number in known]

    def numbers(row: _Row) -> list[str]:
        return [row.numbers[number] for number in known]

    is_relative = any(tensor.base_hash is not None for tensor in report.tensors)
    if summary:
        output.print_table(
            ("tensors", ">number", "dtype", ">size", *columns),
            [(row.name, f"{row.num_tensors:,}", row.dtype, output.size(row.nbytes), *numbers(row)) for row in rows],
            total=("all", f"{len(report.tensors):,}", "", output.size(report.nbytes), *numbers(total)),
            less_important=("bound", "bits", "number", "size"),
        )
    else:
        with_file = max(Counter(tensor.name for tensor in report.tensors).values(), default=1) > 1
        file, base = ["file"] if with_file else [], ["base"] if is_relative else []
        output.print_table(
            ("tensor", *file, "dtype", ">shape", *columns, *base),
            [_cells(row, numbers(row), with_file, is_relative) for row in rows],
            total=("all", *("" for _ in file), "", "", *numbers(total), *("" for _ in base)),
            less_important=("shape", "bound", "bits", "file", "base"),
        )
    print()
    legend = {">bits": "bits: per exponent, overhead included", ">bound": "bound: order-0 entropy"}
    if said := "; ".join(legend[name] for name in columns if name in legend):
        output.print_line(said)
    output.print_line(
        f"{report.path}: {report.kind}, {output.count(len(report.tensors), 'tensor')} in "
        f"{output.count(len(report.files), 'file')}, {output.size(report.nbytes)} stored as "
        f"{output.size(report.stored_nbytes)}"
    )
    for line in _base_lines(report) if is_relative else ():
        output.print_line(line)
    if report.kind == "compressed" and not report.restorable:
        output.print_line("note: no record of the original file: decompressing restores tensors, not its bytes")


def _cells(row: _Row, numbers: Sequence[str], with_file: bool, with_base: bool) -> tuple[str, ...]:
    (tensor,) = row.tensors
    file = [tensor.file] if with_file else []
    base = [_base(tensor)] if with_base else []
    return (row.name, *file, row.dtype, output.shape_text(tensor.shape), *numbers, *base)


def _base(tensor: TensorInfo) -> str:
    """The base of a tensor, and whether it is at hand."""
    if tensor.base_hash is None:
        return "-"
    names = [tensor.base_file, None if tensor.base_name == tensor.name else tensor.base_name]
    name = "".join(f" {each}" for each in names if each is not None)
    found = {None: "", True: ", at hand", False: ", not at hand"}[tensor.base_found]
    return f"{tensor.base_hash[:_SHOWN_DIGITS]}{name}{found}"


def _base_lines(report: InspectReport) -> Iterator[str]:
    """The base of the checkpoint, and how much of it is at hand; and what is in other files of the directory."""
    relative = [tensor for tensor in report.tensors if tensor.base_hash is not None]
    beside = [tensor for tensor in relative if tensor.base_file is not None]
    if beside:
        num_missing = sum(not tensor.base_found for tensor in beside)
        missing = f", which lack {num_missing:,} of them" if num_missing else ""
        yield f"{output.count(len(beside), 'tensor')} relative to other files of the directory{missing}"
    if len(relative) > len(beside):
        yield _base_line(report, [tensor for tensor in relative if tensor.base_file is None])


def _base_line(report: InspectReport, relative: Sequence[TensorInfo]) -> str:
    """The base that has to be given."""
    recorded = report.recorded_base
    text = f"{output.count(len(relative), 'tensor')} relative to a base"
    if recorded is not None:
        text += f" called {recorded.name!r}" + ("" if recorded.hash is None else f", with hash {recorded.hash}")
    if report.base is None:
        return f"{text}; --base OLD says whether OLD is it"
    num_found = sum(tensor.base_found is True for tensor in relative)
    whole = "; it is that base" if recorded is not None and recorded.found else ""
    return f"{text}; {report.base} has {num_found:,} of them{whole}"
