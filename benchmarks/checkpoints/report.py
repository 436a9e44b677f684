"""The results of distributed checkpoints and of remote files, each as a page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment, verdicts
from benchmarks.checkpoints.targets import evaluate
from benchmarks.tables import runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.tables import Table

TITLES = {"dcp": "distributed checkpoints", "remote": "remote stores"}


def render(name: str, results: dict[str, Any], folder: Path, tables: Sequence[Table]) -> str:
    """Everything in `results` as Markdown, for a page in `folder`."""
    page = Path(os.path.relpath(environment.ROOT / "docs" / f"{name}.md", folder)).as_posix()
    parts = [f"# Results of {TITLES[name]}", f"[The page]({page}) says how to use them."]
    parts += ["## Targets", verdicts.render(evaluate(results))]
    parts += [table.render(results[table.name]) for table in tables if table.name in results]
    return "\n\n".join(parts + runs(results)) + "\n"


def write(name: str, folder: Path, tables: Sequence[Table]) -> Path:
    """The page of the results that lie in `folder`."""
    page = folder / f"{name}.md"
    page.write_text(render(name, json.loads((folder / f"{name}.json").read_text()), folder, tables))
    return page
