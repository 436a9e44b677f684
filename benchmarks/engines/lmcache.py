"""LMCache's second tier, dense and as frames. LMCache has an environment of its own, `make lmcache`, and so a program
of its own: python -m benchmarks.engines.lmcache [--quick] prints the rows as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment
from benchmarks.tables import Row, Table
from benchmarks.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

OBJECTS = 8
TOKENS = 256
DENSE = "LMCache's own files"


def measure(quick: bool) -> list[Row]:
    rows: list[Row] = environment.printed("lmcache", "benchmarks.engines.lmcache", *(["--quick"] if quick else []))
    return rows


def _rows(quick: bool) -> Iterator[Row]:
    from tests.support.lmcache_tiers import dense, frames, slots
    from tests.support.real_kv import chunks

    objects = chunks(OBJECTS, 32 if quick else TOKENS)
    for name, make, options in (
        (DENSE, dense, {}),
        ("`fast`", frames, {}),
        ("`fast`, transposed", frames, {"transposed": True}),
        ("`compact`", frames, {"profile": "compact"}),
        ("`fast`, `max_ratio` 0.70", slots, {"max_ratio": 0.70}),
        ("`resident`, `max_ratio` 0.752", slots, {"profile": "resident", "max_ratio": 0.752}),
    ):
        with tempfile.TemporaryDirectory() as folder:
            yield {"with": name} | _row(make(Path(folder), **options), Path(folder), objects)


def _row(adapter: dict[str, Any], folder: Path, objects: Any) -> Row:
    """Store, forget, load."""
    from torch import int16

    from tests.support.lmcache_tiers import Tiers, keys

    names = keys(range(OBJECTS))
    with Tiers(adapter) as tiers:
        tiers.store(names, objects, lambda: len(list(folder.glob("*.data"))) == OBJECTS)
        sizes = [file.stat().st_size for file in folder.glob("*.data")]
        tiers.forget()
        found = tiers.load(names, objects[0])
        same = [one.view(int16).equal(other.view(int16)) for (one,), other in zip(found, objects, strict=False)]
    return {
        "nbytes": sum(sizes),
        "sizes": len(set(sizes)),
        "ratio": sum(each.nbytes for each in objects) / sum(sizes),
        "hits": len(found),
        "equal": sum(same),
    }


TABLES = (
    Table(
        "lmcache",
        "LMCache",
        f"{OBJECTS} objects of {TOKENS} tokens, keys and values of all 6 layers of all-MiniLM-L6-v2 in BF16, through "
        "the storage manager of LMCache 0.5.6: written to its memory, stored by its second tier in files, forgotten, "
        "and loaded again. Hits are objects that come back; a loaded object is compared bit by bit. Files are whole "
        "pages of 4 KiB. Where sizes are fixed, all objects have one.",
        (
            ("serde", "with", ""), ("bytes stored", "nbytes", ",d"), ("ratio", "ratio", ".3f"),
            ("sizes", "sizes", "d"), ("hits", "hits", "d"), ("equal", "equal", "d"),
        ),
        measure,
        missing=partial(environment.lacks, "lmcache"),
    ),
)  # fmt: skip


def evaluate(results: dict[str, Any]) -> Iterator[Verdict]:
    """Every key comes back."""
    for row in results.get("lmcache", ()):
        yield Verdict("LMCache: all objects come back equal", row["with"], row["equal"] == OBJECTS, True)


if __name__ == "__main__":
    print(json.dumps(list(_rows("--quick" in sys.argv))))
