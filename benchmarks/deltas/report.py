"""The results of deltas as a page: python -m benchmarks.deltas.report FOLDER makes deltas.md from its deltas.json."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import pages
from benchmarks.deltas.targets import evaluate
from benchmarks.results_page import Page, targets
from benchmarks.tables import of_columns

Row = dict[str, Any]
HEAD = """# Results of deltas

[The page of deltas](DOCS/deltas.md) says what was measured. Speeds are GB/s, 10^9 bytes of new words per second, \
on one core, on
all tensors of a pair as one: the median, ± half the distance of the quartiles. In brackets: tensor by tensor. In place
means that the base becomes the result. The bound is the entropy of positions and steps, given the tensor and the base's
exponent.
"""


def _parts(results: dict[str, Any]) -> list[str]:
    parts = [HEAD.strip(), pages.environment_lines(results["environment"]), *targets(evaluate(results))]
    return parts + [_pair(facts, results["rows"]) for facts in results["pairs"]]


def _pair(facts: dict[str, Any], rows: list[Row]) -> str:
    bound, changed = facts["bound_bits"], facts["changed"]
    a_change = f"{bound / changed:.3f} bits a change, " if changed else ""
    head = (
        f"## {facts['name']}\n\n{facts['words']} words in {facts['tensors']} tensors, of which "
        f"{changed / facts['words']:.4%} changed. Bound: {a_change}{bound / facts['words']:.4f} bits a word."
    )
    mine = [row for row in rows if row["pair"] == facts["name"]]
    columns: list[tuple[Any, ...]] = [("form", _form), ("checks", lambda row: pages.CHECKSUMS[row["verify"]])]
    columns.append(("bits a change", lambda row: _bits(row, changed, ".2f")))
    columns.append(("bits a word", lambda row: _bits(row, facts["words"], ".4f")))
    for direction in ("encode", "apply", "in_place"):
        columns.append((direction.replace("_", " "), partial(_speed, direction)))
        columns.append(("of memcpy", f"{direction}.vs_memcpy", ".2f"))
    return head + "\n\n" + of_columns(columns, mine)


def _form(row: Row) -> str:
    return f"{row['codec']} {row['version']}" + (f", {row['forced_cpu']}" if row.get("forced_cpu") else "")


def _bits(row: Row, count: int, form: str) -> str:
    if not count:
        return "-"
    text = f"{8 * row['nbytes'] / count:{form}}"
    return text + (f" ({8 * row['by_tensor']['nbytes'] / count:{form}})" if "by_tensor" in row else "")


def _speed(direction: str, row: Row) -> str:
    return pages.speed(row, direction) if direction in row else "-"


PAGE = Page("deltas", _parts)

if __name__ == "__main__":
    PAGE.command(__doc__)
