"""Pages of results: what one is made of, and the commands that write it."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment, summary, verdicts
from benchmarks.tables import asked, exit_if, measure, of_columns, runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.tables import Table
    from benchmarks.verdicts import Verdict

    Results = dict[str, Any]


def indented(results: Results) -> str:
    """Results as text with a line for each value."""
    return json.dumps(results, indent=1) + "\n"


@dataclass(frozen=True)
class Page:
    """A page of results, which lie beside it as JSON.

    Attributes:
        name: of both files, unless `file` is that of the page.
        parts: Markdown of results, part by part. DOCS stands for the folder of the documents.
        draw: makes the picture that the page shows, in its folder.
        dumps: the results as text.
    """

    name: str
    parts: Callable[[Results], Iterable[str]]
    file: str = ""
    draw: Callable[[Results, Path], None] | None = None
    dumps: Callable[[Results], str] = summary.dumps

    def render(self, results: Results, folder: Path) -> str:
        """Everything in `results` as Markdown, for a page in `folder`."""
        docs = Path(os.path.relpath(environment.ROOT / "docs", folder)).as_posix()
        return "\n\n".join(self.parts(results)).replace("DOCS", docs) + "\n"

    def write(self, folder: Path) -> None:
        """Write and print the page of the results that lie in a folder."""
        results = json.loads((folder / f"{self.name}.json").read_text())
        text = self.render(results, folder)
        if self.draw is not None:
            self.draw(results, folder)
        (folder / (self.file or f"{self.name}.md")).write_text(text)
        print(text, end="")

    def keep(self, results: Results, folder: Path, *, write: bool = True) -> None:
        """Write results, and the page of them; or print that alone."""
        if write:
            (folder / f"{self.name}.json").write_text(self.dumps(results))
            self.write(folder)
        else:
            print(self.render(results, folder), end="")

    def command(self, description: str | None) -> None:
        """Write the page of the folder of results that the command line names."""
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("folder", type=Path)
        self.write(parser.parse_args().folder)


def targets(found: list[Verdict]) -> list[str]:
    """Parts of a page: what the targets say."""
    return ["## Targets", verdicts.render(found)]


def keep_rows(name: str, command: str, rows: list[Any], columns: Sequence[tuple[Any, ...]], **facts: Any) -> None:
    """Print rows that have no page as a table, and write them to benchmarks/results."""
    rows = summary.rounded(rows)
    print(of_columns(columns, rows))
    results = {"environment": environment.describe(command, environment.RESULTS), **facts, "rows": rows}
    (environment.RESULTS / f"{name}.json").write_text(summary.dumps(results))


def of_tables(
    head: str,
    tables: Iterable[Table],
    evaluate: Callable[[Results], list[Verdict]],
    pictures: Callable[[Results], list[str]] = lambda results: [],
) -> Callable[[Results], list[str]]:
    """The parts of a page whose tables are measured one by one: `head`, targets, tables, pictures, and how they were
    measured."""

    def parts(results: Results) -> list[str]:
        shown = [table.render(results[table.name]) for table in tables if table.name in results]
        return [head.strip(), *targets(evaluate(results)), *shown, *pictures(results), *runs(results)]

    return parts


def measure_tables(page: Page, tables: Sequence[Table], options: argparse.Namespace) -> None:
    """Do what the command line says (`tables.add_options`), and write and print the page; `make NAME` calls this."""
    chosen, folder = asked(tables, options)
    command = f"make {page.name}" + (f" {page.name.upper()}='{' '.join(options.tables)}'" if options.tables else "")
    results, failed = measure(chosen, folder / f"{page.name}.json", quick=options.quick, command=command)
    page.keep(summary.rounded(results), folder)
    exit_if(failed)
