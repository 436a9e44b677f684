"""The figures that training traffic is to reach."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from benchmarks.traffic import loss
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


def _minilm(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["contender"] == GRADIENTS_TOO:
            yield Verdict(
                "fine-tune, bits a weight in all-gathers", row["link"], row["bits"], 16 / 44 * 2, at_most=True
            )


def _equality(rows: list[Row]) -> Iterator[Verdict]:
    """1 where it is as expected: the same bits, or other ones because of another order of sums."""
    for row in rows:
        same = row["expected"] == "same"
        target = f"{row['what']}: bits of {row['with']}" if same else f"contrast: {row['with']} adds otherwise"
        yield Verdict(target, row["how"], float(row["same"] == same), 1)


def _auto(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if "interval" in row:
            yield Verdict('"auto", upper end of the interval', row["what"], row["interval"][1], 1.03, at_most=True)
        else:
            after = row["switched"][1] if row["switched"] else None
            yield Verdict('"auto", steps until all ranks switched', row["what"], after, 20, at_most=True)


def _loss(rows: list[Row]) -> Iterator[Verdict]:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["run"], []).append(row)
    gaps = {name: mean(row["gap"] for row in found) for name, found in by_name.items()}
    for name in (loss.CLOSED, loss.SDP4BIT):
        yield Verdict("loss minus BF16, nats", name, gaps[name], 0.01, at_most=True)
        apart = max(abs(row["saved"] - row["loss"]) for row in by_name[name])
        yield Verdict("loss of the saved masters minus that of the copies", name, apart, 0.001, at_most=True)
    direct = min(row["distances"][-1] for row in by_name[loss.DIRECT])
    yield Verdict("contrast: distance, least", loss.DIRECT, direct, 0.15)
    yield Verdict("contrast: gap, of the closed loop", loss.DIRECT, gaps[loss.DIRECT] / abs(gaps[loss.CLOSED]), 5)
    end = loss.LOOKS.index(loss.FULL["steps"])
    pairs = list(zip(by_name[loss.OPEN], by_name[loss.CLOSED], by_name[loss.BASELINE], strict=True))
    if all(len(row["distances"]) > end for rows in pairs for row in rows):
        parts = [ours["distances"][end] / closed["distances"][end] for ours, closed, _ in pairs]
        yield Verdict("contrast: distance, of the closed loop, least", loss.OPEN, min(parts), 5)
        of_rounding = [closed["distances"][-1] / plain["distances"][-1] for _, closed, plain in pairs]
        yield Verdict("distance, of that of BF16 rounding", loss.CLOSED, max(of_rounding), 1.5, at_most=True)


def _errors(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if "of the one without" in row and row["tensors"] == "gradients of layers":
            _, middle, most = row["of the one without"]
            yield Verdict("error with Hadamard 32, most", row["tensors"], most, 1, at_most=True)
            yield Verdict("error with Hadamard 32, mean", row["tensors"], middle, 0.92, at_most=True)
    for what, bound in (("gradients of layers, BF16", 1.45), ("activations, BF16", 1.45)):
        times = next(row["times"] for row in rows if row["tensors"] == what)
        yield Verdict("plain frames, times fewer bytes", what, times, bound)
    random = next(row["bits"] for row in rows if row["tensors"].startswith("random"))
    yield Verdict("contrast: frames of random bits, of raw", "BF16", random / 16, 1.01, at_most=True)


def _tensor_parallel(rows: list[Row]) -> Iterator[Verdict]:
    parts: dict[str, list[float]] = {}
    for row in rows:
        parts.setdefault(row["codec"], []).append(row["part"])
    for name, found in parts.items():
        if name.startswith("E4M3"):
            yield Verdict("loss under tensor parallelism, part more", name, mean(found), 0.001, at_most=True)
    if "int4" in parts:
        yield Verdict("contrast: loss under tensor parallelism, part more", "int4", mean(parts["int4"]), 0.003)


def _budget(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if "milliseconds" in row:
            yield Verdict("budget, milliseconds", row["what"], row["milliseconds"], 50, at_most=True)
            continue
        yield Verdict("budget, times fewer bytes", row["what"], row["times"], 1.05 if "100" in row["what"] else 1.15)
        yield Verdict("budget, error of the default's", row["what"], row["error"], 1, at_most=True)
        yield Verdict("contrast: error of other tensors", row["what"], row["ignorant"], 1.01)


def _recommendation(rows: list[Row]) -> Iterator[Verdict]:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["codec"], []).append(row)
        if "violations" in row:
            yield Verdict("bounded: elements within the bound", row["codec"], float(row["violations"] == 0), 1)
    for name, bound in (("bound 0.03, entropy coding alone", 8), ("bound 0.03", 8)):
        if name in by_name:
            yield Verdict("bounded, times fewer bytes, least", name, min(row["times"] for row in by_name[name]), bound)
    if "bound 0.3" in by_name:
        lower = -mean(row["gap"] for row in by_name["bound 0.3"])
        yield Verdict("contrast: area lost", "bound 0.3", lower, 0.01)


def _experts(rows: list[Row]) -> Iterator[Verdict]:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["way"], []).append(row)
    yield Verdict("bits of raw messages", "exact", float(all(row["same"] for row in by_name["exact"])), 1)
    for what, key, bound in (("bytes, of BF16", "part", 0.28), ("loss minus raw, nats", "gap", 0.01)):
        found = mean(row[key] for row in by_name["int4, group 128"])
        yield Verdict(what, "int4, group 128", found, bound, at_most=True)
    clusters = mean(row["gap"] for row in by_name["clusters (LSH-MoE)"])
    yield Verdict("contrast: loss minus raw, nats", "clusters (LSH-MoE)", clusters, 0.01)


_TABLES = {
    "equality": _equality, "differences": _differences, "steps": _steps, "minilm": _minilm, "auto": _auto,
    "loss": _loss, "errors": _errors, "tensor-parallel": _tensor_parallel, "budget": _budget,
    "recommendation": _recommendation, "experts": _experts,
}  # fmt: skip
