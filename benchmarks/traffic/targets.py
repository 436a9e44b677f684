"""The figures that training traffic is to reach."""

from __future__ import annotations

from math import sqrt
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from benchmarks.job import RANKS
from benchmarks.traffic import errors, experts, loss, recommendation
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
_TIMES = "bounded, times fewer bytes, least"


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
    kept = max(row["kept"] for (_, name), row in by_name.items() if name == "exact differences")
    # A copy of all parameters, the shard that a rank had sent, and what FSDP2 adds so that ranks have equal shards.
    yield Verdict(
        "memory kept, of the BF16 parameters", "exact differences", kept, 1.01 * (1 + 1 / RANKS), at_most=True
    )
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
    """Whether it is as expected: the same bits, or other ones because of another order of sums."""
    for row in rows:
        same = row["expected"] == "same"
        target = f"{row['what']}: bits of {row['with']}" if same else f"contrast: {row['with']} adds otherwise"
        yield Verdict(target, row["how"], row["same"] == same, True)


def _auto(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if "interval" in row:
            yield Verdict('"auto", upper end of the interval', row["what"], row["interval"][1], 1.03, at_most=True)
        else:
            after = row["switched"][1] if row["switched"] else None
            yield Verdict('"auto", steps until all ranks switched', row["what"], after, 20, at_most=True)


def _by_run(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "gap" in row:
            found.setdefault(row["run"], []).append(row)
    return found


def _gap(rows: list[Row]) -> float:
    """The mean over seeds."""
    return mean(row["gap"] for row in rows)


def _standard_error(rows: list[Row]) -> float | None:
    """That of the mean gap; one seed tells nothing of it."""
    return stdev([row["gap"] for row in rows]) / sqrt(len(rows)) if len(rows) > 1 else None


def _standard_errors(rows: list[Row]) -> float | None:
    """The mean gap, up or down, in standard errors."""
    error = _standard_error(rows)
    return abs(_gap(rows)) / error if error else None


def _loss(rows: list[Row]) -> Iterator[Verdict]:
    runs = _by_run(rows)
    for name in (loss.CLOSED, loss.SDP4BIT):
        yield Verdict("loss minus BF16, nats", name, _gap(runs[name]), 0.01, at_most=True)
        yield Verdict("that in standard errors", name, _standard_errors(runs[name]), 2, at_most=True)
        apart = max(abs(row["saved"] - row["loss"]) for row in runs[name])
        yield Verdict("loss of the saved masters minus that of the copies", name, apart, 0.001, at_most=True)
    direct = min(row["distances"][-1] for row in runs[loss.DIRECT])
    yield Verdict("contrast: distance, least", loss.DIRECT, direct, 0.15)
    times = _gap(runs[loss.DIRECT]) / abs(_gap(runs[loss.CLOSED]))
    yield Verdict("contrast: gap, of the closed loop", loss.DIRECT, times, 5)
    end = loss.LOOKS.index(loss.FULL["steps"])
    pairs = list(zip(runs[loss.OPEN], runs[loss.CLOSED], strict=True))
    if all(len(row["distances"]) > end for pair in pairs for row in pair):
        parts = [ours["distances"][end] / closed["distances"][end] for ours, closed in pairs]
        yield Verdict("contrast: distance, of the closed loop, least", loss.OPEN, min(parts), 5)
    closed, plain = (runs[name][0]["distances"][-1] for name in (loss.CLOSED, loss.BASELINE))  # the long runs
    yield Verdict("distance, of that of BF16 rounding", loss.CLOSED, closed / plain, 1.5, at_most=True)


def _errors(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if "of the one without" in row and row["tensors"] == "gradients of layers":
            _, middle, most = row["of the one without"]
            yield Verdict("error with Hadamard 32, most", row["tensors"], most, 1, at_most=True)
            yield Verdict("error with Hadamard 32, mean", row["tensors"], middle, 0.92, at_most=True)
        elif "of the one without" in row:
            yield Verdict("contrast: error with Hadamard 32, mean", row["tensors"], row["of the one without"][1], 1)
    found = {row["codec"]: row["all"] for row in rows if row["tensors"] == "activations" and "all" in row}
    pairs = zip(found[errors.TACO], found[errors.HADAMARD], strict=True)
    apart = max(abs(with_it / without - 1) for with_it, without in pairs)
    yield Verdict("TACO's first scale: by which part errors change, most", errors.TACO, apart, 0.001, at_most=True)
    for what, bound in (("gradients of layers, BF16", 1.45), ("activations, BF16", 1.45)):
        times = next(row["times"] for row in rows if row["tensors"] == what)
        yield Verdict("plain frames, times fewer bytes", what, times, bound)
    random = next(row["bits"] for row in rows if row["tensors"].startswith("random"))
    yield Verdict("contrast: frames of random bits, of raw", "BF16", random / 16, 1.01, at_most=True)


def _tensor_parallel(rows: list[Row]) -> Iterator[Verdict]:
    more = {name: mean(row["more"] for row in found) for name, found in _by_run(rows).items()}
    for name, part in more.items():
        if name.startswith("E4M3"):
            yield Verdict("loss under tensor parallelism, part more", name, part, 0.001, at_most=True)
    yield Verdict("contrast: loss under tensor parallelism, part more", "int4", more.get("int4"), 0.003)


def _budget(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if "milliseconds" in row:
            yield Verdict("budget, milliseconds", row["what"], row["milliseconds"], 50, at_most=True)
            continue
        yield Verdict("budget, times fewer bytes", row["what"], row["times"], 1.05 if "100" in row["what"] else 1.15)
        yield Verdict("budget, error of the default's", row["what"], row["error"], 1, at_most=True)
        yield Verdict("contrast: error of other tensors", row["what"], row["ignorant"], 1.01)


def _recommendation(rows: list[Row]) -> Iterator[Verdict]:
    drawn = [row for row in rows if "violations" in row]
    checked = sum(row["elements"] for row in drawn if not row["violations"])
    yield Verdict("bounded: elements drawn, all within the bound", "all", checked, recommendation.ELEMENTS)
    runs = _by_run(rows)
    times = {name: min(row["times"] for row in found) for name, found in runs.items()}
    yield Verdict(_TIMES, recommendation.ENTROPY, times[recommendation.ENTROPY], 8)
    lossless = times[recommendation.FINE] / times[recommendation.REPEATED]
    yield Verdict(_TIMES, recommendation.FINE, lossless, 4, note=f"of {recommendation.REPEATED}")
    apart = _standard_errors(runs[recommendation.FINE])
    yield Verdict("bounded: area minus FP32, standard errors", recommendation.FINE, apart, 2, at_most=True)
    lost = -_gap(runs[recommendation.COARSE])
    yield Verdict("contrast: area lost", recommendation.COARSE, lost, 0.01)


def _experts(rows: list[Row]) -> Iterator[Verdict]:
    runs = _by_run(rows)
    yield Verdict("bits of raw messages", experts.EXACT, all(row["same"] for row in runs[experts.EXACT]), True)
    int4 = runs[experts.INT4]
    yield Verdict("bytes, of BF16", experts.INT4, mean(row["part"] for row in int4), 0.28, at_most=True)
    yield Verdict("loss minus raw, nats", experts.INT4, _gap(int4), 0.01, at_most=True)
    # A limit of 0.01 says something if harmless rounding stays far from it.
    yield Verdict("standard error of that", experts.INT8, _standard_error(runs[experts.INT8]), 0.005, at_most=True)
    clusters = {name: found for name, found in runs.items() if "clusters" in name}
    leak = max(row["leak"] for name, found in runs.items() if name not in clusters for row in found)
    yield Verdict("earlier logits change by a later byte", "codecs", leak == 0, True)
    for name, found in clusters.items():
        yield Verdict("contrast: loss minus raw, nats", name, _gap(found), 0.01)
        yield Verdict("contrast: earlier logits change by a later byte", name, min(row["leak"] for row in found), 0.001)


def _wire(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        on = f"{row['codec']}, {row['numbers']}"
        if row["formula"]:
            for what, bound in (("payload", 0.01), ("interface", 0.04)):
                apart = abs(row[what] / row["formula"] - 1)
                yield Verdict(f"{what}, part beside the formula", on, apart, bound, at_most=True)
            yield Verdict("contrast: bytes, of those without the way back", on, row["forgotten"], 1.9)
        elif row["numbers"] == "normal":
            yield Verdict("frames, times fewer bytes by the interface", on, 16 / row["interface"], 1.45)
        else:
            yield Verdict("contrast: frames of random bits, of raw", on, row["payload"] / 16, 1.01, at_most=True)


def _calls(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        for way in ("encode", "decode"):
            yield Verdict(f"4 KiB, microseconds to {way}", row["what"], row[way], 20, at_most=True)


_TABLES = {
    "equality": _equality, "differences": _differences, "steps": _steps, "minilm": _minilm, "auto": _auto,
    "loss": _loss, "errors": _errors, "tensor-parallel": _tensor_parallel, "budget": _budget,
    "recommendation": _recommendation, "experts": _experts, "wire": _wire, "calls": _calls,
}  # fmt: skip
