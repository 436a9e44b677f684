"""Compressed sizes, byte for byte: what changes a ratio shows in the diff of sizes.csv."""

from __future__ import annotations

from tests import sizes


def test_sizes_are_those_of_the_table() -> None:
    head, *table = sizes.read()
    assert tuple(head) == sizes.COLUMNS
    found = list(sizes.rows())
    changed = {row[0]: row[1:] for row in found if row not in table}
    assert not changed, "python -m tests.sizes writes the table anew; the commit has to say why"
    assert len(found) == len(table)
