"""The results of training traffic as a page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment, verdicts
from benchmarks.tables import runs
from benchmarks.traffic import curves
from benchmarks.traffic.targets import evaluate

if TYPE_CHECKING:
    from benchmarks.tables import Table

HEAD = """# Results of training traffic

On a CPU and a fast link, the codec and not the link decides how long a message takes.
[Training traffic](PAGE) says what each part is, and for whom.

Every table can be measured alone; the list at the end says when each was, and on what. Bits and bytes are the same on a
busy machine and on a quiet one; times are not. A *contrast* is what has to come out worse, such as a base that is too
old: without it a target would say nothing of the codec.
"""


def render(results: dict[str, Any], folder: Path, tables: tuple[Table, ...]) -> str:
    """Everything in `results` as Markdown, for a page in `folder`."""
    page = Path(os.path.relpath(environment.ROOT / "docs" / "traffic.md", folder)).as_posix()
    parts = [HEAD.strip().replace("PAGE", page), "## Targets", verdicts.render(evaluate(results))]
    parts += [table.render(results[table.name]) for table in tables if table.name in results]
    if "loss" in results:
        parts.append(f"![Validation loss by step, with and without lossy codecs]({curves.NAME})")
    parts += runs(results)
    return "\n\n".join(parts) + "\n"


def write(folder: Path, tables: tuple[Table, ...]) -> Path:
    """The page of the results that lie in `folder`."""
    results = json.loads((folder / "traffic.json").read_text())
    if "loss" in results:
        curves.write(results["loss"], folder / curves.NAME)
    page = folder / "traffic.md"
    page.write_text(render(results, folder, tables))
    return page
