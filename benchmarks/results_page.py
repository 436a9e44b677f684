"""Pages of results made of tables that can be measured one by one, and the command that measures them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment, summary, verdicts
from benchmarks.tables import asked, exit_if, measure, runs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from benchmarks.tables import Table
    from benchmarks.verdicts import Verdict


@dataclass(frozen=True)
class Page:
    """A page of results.

    Attributes:
        name: of its files, of `make NAME`, and of the page of docs that says how to use what is measured.
        title: what the results are of.
        tables: in the order of the page.
        evaluate: what the targets say of results.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    evaluate: Callable[[dict[str, Any]], list[Verdict]]

    def render(self, results: dict[str, Any], folder: Path) -> str:
        """Everything in `results` as Markdown, for a page in `folder`."""
        page = Path(os.path.relpath(environment.ROOT / "docs" / f"{self.name}.md", folder)).as_posix()
        parts = [f"# Results of {self.title}", f"[The page]({page}) says how to use them."]
        parts += ["## Targets", verdicts.render(self.evaluate(results))]
        parts += [table.render(results[table.name]) for table in self.tables if table.name in results]
        return "\n\n".join(parts + runs(results)) + "\n"

    def measure(self, options: argparse.Namespace) -> None:
        """Do what the command line says (`tables.add_options`), and write and print the page."""
        tables, folder = asked(self.tables, options)
        results, failed = measure(
            tables, folder / f"{self.name}.json", quick=options.quick, command=f"make {self.name}"
        )
        text = self.render(summary.rounded(results), folder)
        (folder / f"{self.name}.md").write_text(text)
        print(text, end="")
        exit_if(failed)
