"""The results of training traffic as a page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment, pages, verdicts
from benchmarks.traffic import curves
from benchmarks.traffic.targets import evaluate

if TYPE_CHECKING:
    from benchmarks.traffic.table import Table

HEAD = """# Results of training traffic

On a CPU the codec, and not the link, decides above a few Gbit/s. [The page of training traffic](PAGE) says
what each part is, and for whom. Every table can be measured alone; the list at the end says when each was, and on what.
Bits and bytes are the same on a busy machine and on a quiet one; times are not.
"""


def render(results: dict[str, Any], folder: Path, tables: tuple[Table, ...]) -> str:
    """Everything in `results` as Markdown, for a page in `folder`."""
    page = Path(os.path.relpath(environment.ROOT / "docs" / "traffic.md", folder)).as_posix()
    parts = [HEAD.strip().replace("PAGE", page), "## Targets", verdicts.render(evaluate(results))]
    parts += [table.render(results[table.name]) for table in tables if table.name in results]
    if "loss" in results:
        parts.append(f"![Validation loss by step, with and without lossy codecs]({curves.NAME})")
    parts.append("## How they were measured")
    for each in results["runs"]:
        parts += [f"`{each['table']}`, {each['seconds']:.0f} seconds:", pages.environment_lines(each["environment"])]
    return "\n\n".join(parts) + "\n"


def write(folder: Path, tables: tuple[Table, ...]) -> None:
    """The page of the results that lie in `folder`."""
    results = json.loads((folder / "traffic.json").read_text())
    if "loss" in results:
        curves.write(results["loss"], folder / curves.NAME)
    (folder / "traffic.md").write_text(render(results, folder, tables))
