"""The fine-tune of a real model: what each version takes that the example publishes."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks import environment
from benchmarks.picture import INK, OURS, drawn
from benchmarks.tables import Row, Table

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = "examples/sync_minilm.py"
PICTURE = "sync-minilm.svg"
_LINE = re.compile(r"^version (\d+): ([\d,]+) bytes of ([\d,]+)$", re.MULTILINE)


def measure(quick: bool) -> list[Row]:
    line = [sys.executable, environment.ROOT / EXAMPLE]
    text = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env=environment.child()).stdout
    rows = parsed(text)
    draw(rows, environment.folder(quick=quick) / PICTURE)
    return rows


def parsed(text: str) -> list[Row]:
    found = [[int(number.replace(",", "")) for number in line] for line in _LINE.findall(text)]
    return [
        {"version": version, "nbytes": nbytes, "dense": dense, "ratio": dense / nbytes}
        for version, nbytes, dense in found
    ]


def draw(rows: list[Row], path: Path) -> None:
    """The bytes of each version, beside those of all weights."""
    with drawn(path) as axis:
        versions = [row["version"] for row in rows]
        axis.bar(versions, [row["nbytes"] / 1e6 for row in rows], color=OURS, label="published")
        axis.axhline(rows[0]["dense"] / 1e6, linestyle=":", color=INK, label="all weights, BF16")
        axis.set(yscale="log", ylabel="MB, logarithmic", xlabel="version, one for each step; version 0 is an anchor")
        axis.set_xticks(versions)
        axis.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        axis.set_ylim(0.1, 100)
        axis.legend(frameon=False)


TABLE = Table(
    "minilm",
    "A real model after each step",
    f"all-MiniLM-L6-v2 is fine-tuned by {EXAMPLE}, which publishes its weights as BF16 after every step; an engine in "
    "another process follows and embeds the same, bit for bit. Version 0 is an anchor.",
    (("version", "version", "d"), ("bytes", "nbytes", ",d"), ("all weights", "dense", ",d"), ("ratio", "ratio", ".1f")),
    measure,
)
