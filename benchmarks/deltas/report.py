"""The results of deltas as a page: python -m benchmarks.deltas.report FOLDER makes deltas.md from its deltas.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks import environment, pages, verdicts
from benchmarks.deltas.targets import evaluate

Row = dict[str, Any]
HEAD = """# Results of deltas

[The page of deltas](PAGE) says what was measured. Speeds are GB/s, 10^9 bytes of new words per second, on one core, on
all tensors of a pair as one: the median, ± half the distance of the quartiles. In brackets: tensor by tensor. In place
means that the base becomes the result. The bound is the entropy of positions and steps, given the tensor and the base's
exponent.
"""
COLUMNS = (
    "form", "checks", "bits a change", "bits a word", "encode", "of memcpy", "apply", "of memcpy", "in place",
    "of memcpy",
)  # fmt: skip


def render(results: dict[str, Any], folder: Path) -> str:
    """Everything in `results` as Markdown, for a page in `folder`."""
    page = Path(os.path.relpath(environment.ROOT / "docs" / "deltas.md", folder)).as_posix()
    parts = [HEAD.strip().replace("PAGE", page), pages.environment_lines(results["environment"]), "## Targets"]
    parts.append(verdicts.render(evaluate(results)))
    parts += [_pair(facts, results["rows"]) for facts in results["pairs"]]
    return "\n\n".join(parts) + "\n"


def _pair(facts: dict[str, Any], rows: list[Row]) -> str:
    bound, changed = facts["bound_bits"], facts["changed"]
    a_change = f"{bound / changed:.3f} bits a change, " if changed else ""
    head = (
        f"## {facts['name']}\n\n{facts['words']} words in {facts['tensors']} tensors, of which "
        f"{changed / facts['words']:.4%} changed. Bound: {a_change}{bound / facts['words']:.4f} bits a word."
    )
    mine = [row for row in rows if row["pair"] == facts["name"]]
    return head + "\n\n" + pages.table(COLUMNS, [_cells(row, facts) for row in mine])


def _cells(row: Row, facts: dict[str, Any]) -> list[str]:
    name = f"{row['codec']} {row['version']}" + (f", {row['forced_cpu']}" if row.get("forced_cpu") else "")
    cells = [name, pages.CHECKSUMS[row["verify"]]]
    cells += [_bits(row, facts["changed"], ".2f"), _bits(row, facts["words"], ".4f")]
    for direction in ("encode", "apply", "in_place"):
        cells += _speed(row, direction)
    return cells


def _bits(row: Row, count: int, form: str) -> str:
    if not count:
        return "-"
    text = f"{8 * row['nbytes'] / count:{form}}"
    return text + (f" ({8 * row['by_tensor']['nbytes'] / count:{form}})" if "by_tensor" in row else "")


def _speed(row: Row, direction: str) -> list[str]:
    figure = row.get(direction)
    if figure is None:
        return ["-", "-"]
    return [pages.speed(row, direction), f"{figure['vs_memcpy']:.2f}" if "vs_memcpy" in figure else "-"]


def write(folder: Path) -> None:
    """The page of the results that lie in `folder`."""
    (folder / "deltas.md").write_text(render(json.loads((folder / "deltas.json").read_text()), folder))


if __name__ == "__main__":
    pages.command(__doc__, write)
