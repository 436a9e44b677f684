"""Tables of results that can be measured one by one."""

from __future__ import annotations

import json
import sys
import textwrap
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import environment, pages, summary

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table that can be measured alone.

    Attributes:
        name: on the command line, and in the results.
        title, text: on the page.
        columns: head, key in a row, and format of each column.
        measure: makes the rows; in a quick form that shows that it works, and measures nothing, if it is asked for one.
        missing: why this machine cannot measure it; "" if it can.
    """

    name: str
    title: str
    text: str
    columns: tuple[tuple[str, str, str], ...]
    measure: Callable[[bool], list[Row]]
    missing: Callable[[], str] = str

    def render(self, rows: list[Row]) -> str:
        return f"## {self.title}\n\n{filled(self.text)}\n\n{of_columns(self.columns, rows)}"


def filled(text: str) -> str:
    """A paragraph of a page, in lines."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def of_columns(columns: Sequence[tuple[Any, ...]], rows: Iterable[Row]) -> str:
    """A Markdown table. A column has its head, and a key of the rows with a format, or a function of a row. The key
    "a.b" is b of what is at a."""
    cells = ([cell(_at(row, how[0]), how[1]) if how[1:] else how[0](row) for _, *how in columns] for row in rows)
    return pages.table([column[0] for column in columns], cells)


def _at(row: Row, key: str) -> Any:
    first, _, rest = key.partition(".")
    value = row.get(first)
    return _at(value, rest) if rest and value is not None else value


def cell(value: Any, form: str) -> str:
    if isinstance(value, list):
        return " to ".join(cell(each, form) for each in value)
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:{form}}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every page of tables takes."""
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="of the page; by default all")
    parser.add_argument("--quick", action="store_true", help="little data, which measures nothing, into build/bench")


def asked(tables: Sequence[Table], options: argparse.Namespace) -> tuple[list[Table], Path]:
    """Which tables the command line asks for, in the order of the page, and the folder that their results belong to.
    SystemExit for a table that is unknown."""
    known = [table.name for table in tables]
    if unknown := set(options.tables) - set(known):
        sys.exit(f"expected tables among {', '.join(known)}, got {', '.join(sorted(unknown))}")
    chosen = [table for table in tables if table.name in (options.tables or known)]
    return chosen, environment.folder(quick=options.quick)


def measure(tables: Sequence[Table], path: Path, *, quick: bool, command: str) -> tuple[dict[str, Any], list[str]]:
    """All results: what lies in the file `path`, and these tables measured anew; and the names of those that failed,
    whose old results stay."""
    failed = []
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": []}
    for number, table in enumerate(tables, 1):
        if missing := table.missing():
            environment.log(f"{table.name}: not measured: {missing}")
            continue
        environment.log(f"{table.name}: table {number} of {len(tables)}")
        facts, began = environment.describe(command, path.parent), time.monotonic()
        try:
            rows = table.measure(quick)
        except Exception:
            environment.log(traceback.format_exc())
            failed.append(table.name)
            continue
        results[table.name] = rows
        results["runs"] = [each for each in results["runs"] if each["table"] != table.name]
        results["runs"].append({"table": table.name, "seconds": time.monotonic() - began, "environment": facts})
        path.write_text(summary.dumps(summary.rounded(results)))
    return results, failed


def exit_if(failed: Sequence[str]) -> None:
    """End the program where these tables have failed, once its page is written."""
    if failed:
        sys.exit(f"these tables have failed, and their old results stay: {', '.join(failed)}")


def runs(results: dict[str, Any]) -> list[str]:
    """Parts of a page: when each table was measured, and on what."""
    parts = ["## How they were measured"]
    for each in results["runs"]:
        parts += [f"`{each['table']}`, {each['seconds']:.0f} seconds:", pages.environment_lines(each["environment"])]
        parts += [f"It did not end well: `{' '.join(error.split())[-300:]}`" for error in each.get("errors", ())]
    return parts
