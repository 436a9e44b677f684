"""Distributed checkpoints: bytes and CPU of a save, and bytes read by another number of ranks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import job
from benchmarks.checkpoints import ranks
from benchmarks.tables import Row, Table

FULL: dict[str, Any] = {"layers": 12, "width": 256, "rows": 2, "steps": 100, "turns": 7}
QUICK = FULL | {"layers": 1, "width": 64, "steps": 2, "turns": 1}
LOADED = {"layers": 2, "width": 768, "steps": 5, "turns": 1}  # parts of a rank have several blocks, as large models do
DTYPES = ("bfloat16", "float32")
BOUND = "entropy bound"
MANY, FEW = 4, 2


def measure_saves(quick: bool) -> list[Row]:
    rows = []
    for dtype in DTYPES:
        with tempfile.TemporaryDirectory() as folder:
            settings = (QUICK if quick else FULL) | {"dtype": dtype, "folder": folder, "do": "train"}
            trained = job.run(ranks.rank, settings, ranks=MANY)
            sizes = {name: _nbytes(Path(folder) / f"{dtype} {MANY} {name}") for name in ranks.WRITERS}
        for row in saves(dtype, trained["turns"]):
            nbytes = sizes[row["writer"]]
            rows.append(row | {"nbytes": nbytes, "bytes of torch": nbytes / sizes[ranks.TORCH]})
        bound = trained["bound_nbytes"]
        rows.append({"dtype": dtype, "writer": BOUND, "nbytes": bound, "bytes of torch": bound / sizes[ranks.TORCH]})
    return rows


def saves(dtype: str, turns: list[dict[str, Any]]) -> list[Row]:
    """A row for each writer: medians, and medians of the quotients of a round."""
    found = []
    base = [turn for turn in turns if turn["writer"] == ranks.TORCH]
    for name in ranks.WRITERS:
        own = [turn for turn in turns if turn["writer"] == name]
        row: Row = {"dtype": dtype, "writer": name, "saves": len(own)}
        for what in ("cpu_seconds", "seconds"):
            row[what] = median(turn[what] for turn in own)
            row[f"{what} of torch"] = median(a[what] / b[what] for a, b in zip(own, base, strict=True))
        found.append(row)
    return found


def measure_loads(quick: bool) -> list[Row]:
    rows = []
    for dtype in DTYPES:
        with tempfile.TemporaryDirectory() as folder:
            settings = (QUICK if quick else FULL | LOADED) | {"dtype": dtype, "folder": folder, "do": "train"}
            job.run(ranks.rank, settings, ranks=MANY)
            for before, after in ((MANY, FEW), (FEW, MANY)):
                found = job.run(ranks.rank, settings | {"do": "load", "from": before}, ranks=after)
                for name, read in found["readers"].items():
                    saved = _nbytes(Path(folder) / f"{dtype} {before} {name}")
                    rows.append({
                        "dtype": dtype, "ranks": f"{before} to {after}", "storage": name, "saved": saved,
                        "read": read["nbytes"], "part": read["nbytes"] / saved, "calls": read["calls"],
                        "same": found["same"],
                    })  # fmt: skip
    return rows


def _nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


_MODEL = (
    f"A language model of {FULL['layers']} layers and width {FULL['width']} under FSDP2; its parameters and the states "
    "of AdamW have one dtype."
)
SAVES = Table(
    "saves",
    "A distributed checkpoint saved",
    f"{_MODEL} {MANY} ranks save it after {FULL['steps']} steps on the text of the standard library, in turns by each "
    "writer, over the checkpoint of the turn before. All files of a checkpoint count. The bound: exponents at the "
    "entropy of each part of a tensor, all else raw, without names and metadata. Profile compact counts in each block "
    "anew, and codes some bits behind the exponent too, so it may lie below. CPU seconds are those of all ranks, wall "
    "seconds those of the slowest; medians, and medians of the quotients of one round.",
    (("dtype", "dtype", ""), ("writer", "writer", ""), ("bytes", "nbytes", ",.0f"),
     ("of torch's", "bytes of torch", ".3f"), ("saves", "saves", "d"), ("CPU seconds", "cpu_seconds", ".3f"),
     ("of torch's", "cpu_seconds of torch", ".2f"), ("wall seconds", "seconds", ".3f"),
     ("of torch's", "seconds of torch", ".2f")),
    measure_saves,
)  # fmt: skip
LOADS = Table(
    "loads",
    "Loaded on another number of ranks",
    f"The same with {LOADED['layers']} layers of width {LOADED['width']}. Ranks load with each storage what another "
    "number of ranks has saved with it. Bytes and calls are those that the kernel counts for all ranks (rchar and "
    "syscr), metadata and what ranks say to each other included.",
    (("dtype", "dtype", ""), ("ranks", "ranks", ""), ("written by", "storage", ""), ("bytes saved", "saved", ",d"),
     ("bytes read", "read", ",d"), ("of those saved", "part", ".3f"), ("calls", "calls", ",d"),
     ("all bits the same", "same", "")),
    measure_loads,
)  # fmt: skip
TABLES = (SAVES, LOADS)
