"""What the content of every golden frame is compressed to: ``python -m tests.sizes`` writes the table anew.

Golden frames are files, so these inputs are the same everywhere, whatever the version of NumPy.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING

import tensorwire
from tests.support.registry import PROFILES

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Path(__file__).with_name("sizes.csv")
COLUMNS = ("input", "dtype", "nbytes", *PROFILES)


def rows() -> Iterator[tuple[str, ...]]:
    """Of each input its name, dtype, size, and the sizes of its frames."""
    for manifest in sorted(TABLE.with_name("golden").glob("v*/manifest.json")):
        for entry in json.loads(manifest.read_text())["frames"]:
            golden = manifest.with_name(f"{entry['name']}.tw").read_bytes()
            data = tensorwire.decompress(golden, framework="bytes")
            sizes = [
                len(tensorwire.compress(data, dtype=entry["dtype"], shape=entry["shape"], profile=profile))
                for profile in PROFILES
            ]
            yield (f"{manifest.parent.name}/{entry['name']}", entry["dtype"], *map(str, (len(data), *sizes)))


def write() -> None:
    with TABLE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows()])


def read() -> list[tuple[str, ...]]:
    with TABLE.open(newline="") as file:
        return [tuple(row) for row in csv.reader(file)]


if __name__ == "__main__":
    write()
