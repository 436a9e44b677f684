"""The figures that training traffic is to reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, Any]
# Times fewer bytes than BF16 in the all-gather of layers, at a flat rate, and in the tail of a cosine.
TIMES = {1e-3: 3.5, 3e-4: 5.0, 1e-4: 7.5}
TAIL_RATE, TAIL_TIMES = 3e-5, 14.0
GRADIENTS_TOO = "exact differences and gradients"
# The part of the time of FSDP2, and of that of our own exchange with raw messages.
STEPS = {"200 Mbit/s": (0.6, 0.7), "50 Mbit/s": (0.35, 0.42)}


def evaluate(results: dict[str, Any]) -> list[Verdict]:
    """Every target whose table is in `results`."""
    return [verdict for name, find in _TABLES.items() if name in results for verdict in find(results[name])]


def _differences(rows: list[Row]) -> Iterator[Verdict]:
    layers = [row for row in rows if row["weights"] == "layers"]
    for rate, bound in TIMES.items():
        flat = [row["times"] for row in layers if row["schedule"] == "flat" and row["peak"] == row["rate"] == rate]
        yield Verdict("exact differences, times fewer bytes, least", f"{rate:g}", min(flat, default=None), bound)
    tail = [row["times"] for row in layers if row["schedule"] != "flat" and abs(row["rate"] / TAIL_RATE - 1) < 0.01]
    yield Verdict("exact differences, times fewer bytes", f"cosine, {TAIL_RATE:g}", min(tail, default=None), TAIL_TIMES)
    worse = [row["too old fast"] / row["relative fast"] for row in layers]
    yield Verdict("contrast: a base one step too old, times the bits, least", "all", min(worse, default=None), 1.01)


def _steps(rows: list[Row]) -> Iterator[Verdict]:
    by_name = {(row["link"], row["contender"]): row for row in rows}
    for link, bounds in STEPS.items():
        row = by_name.get((link, GRADIENTS_TOO), {})
        for other, bound in zip(("FSDP2", "raw messages"), bounds, strict=True):
            yield Verdict(f"{GRADIENTS_TOO}, time, of {other}", link, row.get(f"of {other}"), bound, at_most=True)
        both = [by_name.get((link, name), {}).get("of FSDP2") for name in ("SDP4Bit", GRADIENTS_TOO)]
        yield Verdict("SDP4Bit, time, of exact", link, both[0] / both[1] if all(both) else None, 1, at_most=True)
    links = {link for link, _ in by_name}
    for link in sorted(links):
        row = by_name[link, GRADIENTS_TOO]
        for other, bound in (("raw messages", 3.2), ("FSDP2", 4.5)):
            times = row.get(f"bytes of {other}")
            yield Verdict(f"{GRADIENTS_TOO}, times fewer bytes than {other}", link, 1 / times if times else None, bound)


_TABLES = {"differences": _differences, "steps": _steps}
