"""Tables and lines for a reader, JSON for a program, progress for a person who waits. Names are printed escaped."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._ground.text import count as count
from .._ground.text import escape
from .._ground.text import size as size

if TYPE_CHECKING:
    from rich.table import Table

    Progress = Callable[[int, int, str], None]

_SHOWN_ITEMS = 20
_PIPE_WIDTH = 10_000  # a table in a pipe is as wide as it wants to be
_MIN_NAME_WIDTH = 16
_MIN_WRAPPED_WIDTH = 40
_BAR_NAME_WIDTH = 24


def print_json(value: Any) -> None:
    """Print a JSON document on one line; dataclasses become objects with their properties."""
    print(json.dumps(value, default=members))


def print_line(text: str) -> None:
    """Print a line, escaped."""
    print(escape(text))


def print_wrapped(text: str) -> None:
    """Print a line, escaped. A terminal gets it broken between words, with the later lines indented by two more."""
    text = escape(text)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    if width >= _MIN_WRAPPED_WIDTH:
        indent = " " * (len(text) - len(text.lstrip(" ")) + 2)
        text = textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    print(text)


def first(items: Sequence[str], noun: str, line: Callable[[str], str] = str) -> list[str]:
    """A line for each of the first 20 items, and one that counts the rest.

    A wrong base is a problem of every tensor, and --exclude may leave out a million files.
    """
    lines = [line(item) for item in items[:_SHOWN_ITEMS]]
    rest = len(items) - len(lines)
    return [*lines, f"{count(rest, f'more {noun}')}; --json lists all"] if rest else lines


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    total: Sequence[str] | None = None,
    less_important: Sequence[str] = (),
) -> None:
    """Print a table. A title that begins with ">" sets its column flush right; `total` is a last row, set apart.

    If a terminal is too narrow, the names in the first column are abbreviated. If that is not enough, or makes two
    names the same, the `less_important` columns are left out one by one. If two names are still the same, names take
    several lines. In a pipe a table keeps its full width.
    """
    from rich.console import Console

    # Rich ends the process by itself when a pipe is closed, so it does not get to write: it draws into a string.
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else _PIPE_WIDTH, markup=False, highlight=False)
    left_out: list[str] = []
    rest = [title.removeprefix(">") for title in columns]
    less_important = [title for title in less_important if title in rest]
    while True:
        kept = [index for index, title in enumerate(rest) if title not in left_out]
        chosen = [[row[index] for index in kept] for row in (columns, *rows, *([total] if total else []))]
        excess = _width(chosen) - console.width
        whole = [escape(row[0]) for row in chosen]
        room = max(map(len, whole)) - excess
        names = [_abbreviate(name, max(room, _MIN_NAME_WIDTH)) for name in whole] if excess > 0 else whole
        distinct = len(set(names)) == len(set(whole))
        if (room >= _MIN_NAME_WIDTH and distinct) or len(left_out) == len(less_important):
            break
        left_out.append(less_important[len(left_out)])
    abbreviated = excess > 0 and distinct
    if abbreviated:
        chosen = [[name, *row[1:]] for name, row in zip(names, chosen, strict=True)]
    titles, *lines = chosen
    footer = lines.pop() if total else None
    with console.capture() as capture:
        console.print(_table(titles, lines, footer))
    text = "".join(f"{line.rstrip()}\n" for line in capture.get().rstrip().split("\n"))
    if left_out:
        text += f"no room for {', '.join(left_out)}: use a wider terminal, or a pipe\n"
    if abbreviated:
        text += "names are abbreviated to fit this terminal; a pipe gets them whole\n"
    print(text, end="")


def _width(lines: Sequence[Sequence[str]]) -> int:
    """The width of a table with these lines, titles included, if nothing is cut."""
    from rich.cells import cell_len

    widths = [max(cell_len(escape(cell.removeprefix(">"))) for cell in column) for column in zip(*lines, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], total: Sequence[str] | None) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
        show_footer=total is not None,
        header_style="bold",
        footer_style="bold",
        border_style="dim",
    )
    for index, title in enumerate(columns):
        table.add_column(
            Text(title.removeprefix(">")),
            Text(escape(total[index])) if total is not None else "",
            justify="right" if title.startswith(">") else "left",
            no_wrap=index > 0,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(escape(cell)) for cell in row))
    return table


@contextmanager
def progress(title: str, *, in_bytes: bool = True, quiet: bool = False) -> Iterator[Progress | None]:
    """A bar on standard error if that is a terminal, else None; checkpoint operations take it as `progress`.

    `in_bytes`: done and total are bytes.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress as rich
    from rich.console import Console
    from rich.table import Column

    console = Console(file=sys.stderr, highlight=False)
    in_bytes_kinds = (rich.DownloadColumn, rich.TransferSpeedColumn, rich.TimeRemainingColumn)
    kinds = in_bytes_kinds if in_bytes else (rich.MofNCompleteColumn,)
    with rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=None),
        *(kind(table_column=Column(no_wrap=True)) for kind in kinds),
        console=console,
        transient=True,
        expand=True,
    ) as bars:
        task = bars.add_task(title, total=None)

        def update(done: int, total: int, path: str) -> None:
            name = _cut(escape(path).removesuffix(".safetensors"), _BAR_NAME_WIDTH)
            bars.update(task, completed=done, total=total, description=f"{title} {name}")

        yield update


def _abbreviate(name: str, width: int) -> str:
    """The beginnings of all words of a long name, and its numbers: "enc.lay.11.wei", "mode-00012-of-00030.safe".

    If that is too long, both ends of the name: "encoder.layer.1…self.query.weight".
    """
    if len(name) <= width:
        return name
    for limit in range(width, 0, -1):
        short = re.sub(rf"([^\W\d]{{{limit}}})[^\W\d]+", r"\1", name)
        if len(short) <= width:
            return short
    return _cut(name, width)


def _cut(name: str, width: int) -> str:
    """Both ends of a long name: "unet/diff…00012-of-00030"."""
    if len(name) <= width:
        return name
    tail = width * 3 // 5
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def speed(nbytes: int, seconds: float) -> str:
    """GB/s of uncompressed bytes."""
    if seconds <= 0:
        return "- GB/s"
    value = nbytes / seconds / 1e9
    return f"{value:.{2 if value >= 0.1 else 3}f} GB/s"


def decimals(value: float | None, places: int = 3) -> str:
    """A dash for what there is not."""
    return "-" if value is None else f"{value:.{places}f}"


def shape_text(shape: Sequence[int]) -> str:
    """30522x384, with a multiplication sign; "scalar" for no dimensions."""
    return "\N{MULTIPLICATION SIGN}".join(map(str, shape)) or "scalar"


def members(record: Any) -> dict[str, Any]:
    """The fields and the properties of a dataclass."""
    names = [field.name for field in dataclasses.fields(record)]
    names += [name for name, member in vars(type(record)).items() if isinstance(member, property)]
    return {name: getattr(record, name) for name in names}
