"""What the content of every golden frame is compressed to: ``python -m tests.sizes`` writes the table anew.

Golden frames are files, so these inputs are the same everywhere, whatever the version of NumPy.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import tensorwire
from reference.tensorwire_reference import decode
from tests.support import golden
from tests.support.registry import PROFILES

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Path(__file__).with_name("sizes.csv")
COLUMNS = ("input", "dtype", "nbytes", *PROFILES)


def rows() -> Iterator[tuple[str, ...]]:
    """The name, dtype and size of each input, and the sizes of its frames."""
    for entry in golden.manifest("frames"):
        if not golden.has_layout_of_table(entry):
            continue  # what a caller says of the words would be part of the input
        data = decode(golden.frame_of(entry), golden.base_of(entry)).data
        options = {"dtype": entry["dtype"], "shape": entry["shape"]}
        sizes = [len(tensorwire.compress(data, **options, profile=profile)) for profile in PROFILES]
        yield (f"v1/{entry['name']}", entry["dtype"], *map(str, (len(data), *sizes)))


def write() -> None:
    with TABLE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows()])


def read() -> list[tuple[str, ...]]:
    with TABLE.open(newline="") as file:
        return [tuple(row) for row in csv.reader(file)]


if __name__ == "__main__":
    write()
