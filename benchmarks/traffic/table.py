"""What a table of the results is."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import pages

if TYPE_CHECKING:
    from collections.abc import Callable

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table that can be measured alone.

    Attributes:
        name: on the command line, and in the results.
        title, text: on the page.
        columns: head, key in a row, and format of each column.
        measure: makes the rows; in a quick form that shows that it works, and measures nothing, if it is asked for one.
        needs_links: whether the ranks are to have links between them.
    """

    name: str
    title: str
    text: str
    columns: tuple[tuple[str, str, str], ...]
    measure: Callable[[bool], list[Row]]
    needs_links: bool = False

    def render(self, rows: list[Row]) -> str:
        cells = ([_cell(row.get(key), form) for _, key, form in self.columns] for row in rows)
        text = textwrap.fill(self.text, 120, break_long_words=False, break_on_hyphens=False)
        return f"## {self.title}\n\n{text}\n\n" + pages.table([head for head, _, _ in self.columns], cells)


def _cell(value: Any, form: str) -> str:
    if isinstance(value, list):
        return " to ".join(_cell(each, form) for each in value)
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:{form}}"
