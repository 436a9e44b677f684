"""Cycles and bytes per element of each coder with everything in the cache: python -m benchmarks.codecs.cycles.

One thread works on one core, on each CPU target that is here. The time of a small tensor is taken from that of a large
one, so that what a call costs drops out. Each is the best of some runs that take turns. Cycles are those of the core's
clock, which is measured between rounds. The median of all rounds counts: on a shared machine some are disturbed.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from benchmarks import data, environment, summary
from benchmarks.clock import load_clock
from benchmarks.results_page import Page
from benchmarks.synthetic_pairs import synthetic_pair
from benchmarks.tables import of_columns
from benchmarks.timing import pinned, timed
from tensorwire._ground.allocation import new_buffer
from tensorwire.codec import FrameEncoder, FrameReader, dtype_bits
from tensorwire.codec.frame import core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorwire.codec import Profile

SMALL_NBYTES, LARGE_NBYTES = 1 << 19, 1 << 20
"""Both, with their frames, fit a second-level cache of 2 MiB; whole blocks of every profile fit them."""
RUNS = 15  # of a round


@dataclass(frozen=True)
class Case:
    """One coder on one kind of data.

    Attributes:
        coder: the kind of its blocks; behind a comma what else matters.
        make: gives so many elements.
        base: gives as many of the base, of a relative frame.
    """

    coder: str
    profile: Profile
    dtype: str
    make: Callable[[int], Any]
    base: Callable[[int], Any] | None = None


def cases() -> Iterator[Case]:
    """Every coder on every dtype that it is for, and what is not coded by exponent."""
    coders: tuple[tuple[str, Profile], ...] = (("cascade", "fast"), ("enec", "enec"), ("entropy", "compact"))
    coders += (("cascade2, resident", "resident"),)
    for coder, profile in coders:
        for dtype, cast in data.CASTS.items():
            yield Case(coder, profile, dtype, lambda size, cast=cast: cast(_normal(size)))
    yield Case("cascade, 16 bits trimmed", "fast", "F32", lambda size: _normal(size).view(np.uint32) & 0xFFFF0000)
    yield Case("cascade, trimmed run by run", "fast", "F32", _trimmed_by_run)
    yield Case("plain, 29 bits trimmed", "fast", "U64", lambda size: _normal(size).astype(np.float64))
    yield Case("plain, 22 bits trimmed", "fast", "I32", lambda size: _integers(size).astype(np.int32))
    yield Case("plain, 54 bits trimmed", "fast", "I64", _integers)
    yield Case("stored", "fast", "BF16", lambda size: np.random.default_rng(2).integers(0, 1 << 16, size, np.uint16))
    yield Case("constant", "fast", "BF16", lambda size: np.full(size, 0x3F80, np.uint16))
    yield Case("zeros, half of the words", "fast", "BF16", _half_zero)
    yield from _sparse_cases()
    yield from _relative_cases()


def _sparse_cases() -> Iterator[Case]:
    for per_cent in (10, 50, 90, 99):
        make = partial(_scattered_zeros, per_cent)
        yield Case(f"zeros, {per_cent} % scattered", "fast", "BF16", make)
        yield Case(f"zeros, {per_cent} % scattered, compact", "compact", "BF16", make)
    yield Case("modal", "fast", "BF16", _one_exponent)
    yield Case("cascade2", "fast", "F32", _wide)


def _relative_cases() -> Iterator[Case]:
    """A step of training that changes about 2 % of the words, and one that changes most of them."""
    profiles: tuple[Profile, ...] = ("fast", "compact")
    for profile in profiles:
        for coder, rate in (("sparse", 5e-6), ("dense", 1e-3)):
            old, new = (lambda size, rate=rate, side=side: synthetic_pair(size, rate)[side] for side in (0, 1))
            yield Case(f"{coder}, relative, {profile}", profile, "BF16", new, old)


def measure(case: Case, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    """One row of the table."""
    large, small = _Trial(case, LARGE_NBYTES), _Trial(case, SMALL_NBYTES)
    elements = (LARGE_NBYTES - SMALL_NBYTES) * 8 // dtype_bits(case.dtype)
    cycles: dict[str, list[float]] = {"encode": [], "decode": [], "verify": []}
    for _ in range(rounds):
        hz = clock()
        for name, values in cycles.items():
            pairs = [(large.seconds(name), small.seconds(name)) for _ in range(RUNS)]
            longer, shorter = (min(times) for times in zip(*pairs, strict=True))
            values.append((longer - shorter) * hz / elements)
    read = large.frame_nbytes + (LARGE_NBYTES if case.base else 0)
    moved = (LARGE_NBYTES + read) * dtype_bits(case.dtype) / 8 / LARGE_NBYTES
    return {
        "coder": case.coder,
        "dtype": case.dtype,
        "cpu": core.cpu_target(),
        "kinds": large.kinds,
        "bytes": moved,
        **{name: median(values) for name, values in cycles.items()},
    }


class _Trial:
    """One tensor, its frame, and the three things that are timed."""

    def __init__(self, case: Case, nbytes: int) -> None:
        self._data = new_buffer(nbytes)
        values = case.make(nbytes * 8 // dtype_bits(case.dtype))
        np.frombuffer(self._data, np.uint8)[:] = values.view(np.uint8)
        self._case = case
        self._shape = (len(values),)
        self._base = None if case.base is None else case.base(len(values)).view(np.uint8)
        self._frame = new_buffer(2 * nbytes)
        self._out = new_buffer(nbytes)
        header = self._encode()
        self._reader = FrameReader(header)
        self._blocks = self._frame[: self._reader.info.data_nbytes]
        self.frame_nbytes = self._reader.info.frame_nbytes
        self.kinds = ", ".join(sorted({info.kind for info in self._reader.block_infos(self._blocks)}))
        self._decode(verify=True)
        if self._out != self._data:
            raise RuntimeError(f"{case.coder} on {case.dtype}: the result differs from the input")

    def seconds(self, name: str) -> float:
        """Time of one run."""
        functions = {"encode": self._encode, "decode": lambda: self._decode(verify=False)}
        return timed(functions.get(name, lambda: self._decode(verify=True)))[0]

    def _encode(self) -> bytes:
        case, relative = self._case, self._base is not None
        encoder = FrameEncoder(case.dtype, self._shape, profile=case.profile, relative=relative, threads=1)
        encoder.encode(self._data, self._frame, base=self._base)
        return encoder.finish()

    def _decode(self, *, verify: bool) -> None:
        self._reader.decode(self._blocks, self._out, base=self._base, threads=1, verify=verify)


def _parts(results: dict[str, Any]) -> list[str]:
    facts = results["environment"]
    measured = (
        f"{facts['cpu']}, {facts['caches']}; the core's clock was {facts['clock_ghz']:.2f} GHz. {facts['date']}, "
        f"commit {facts['commit']}, `{facts['command']}`."
    )
    return ["# Cycles and bytes per element", measured, of_columns(_COLUMNS, results["rows"])]


_COLUMNS = (
    ("coder", "coder", ""), ("dtype", "dtype", ""), ("CPU target", "cpu", ""), ("blocks are", "kinds", ""),
    ("bytes moved", "bytes", ".2f"), ("encode", "encode", ".2f"), ("decode", "decode", ".2f"),
    ("decode, checksums checked", "verify", ".2f"),
)  # fmt: skip
PAGE = Page("cycles", _parts)


def _normal(size: int) -> Any:
    return np.random.default_rng(1).standard_normal(size, dtype=np.float32) * np.float32(0.02)


def _half_zero(size: int) -> Any:
    values = _normal(size).astype(ml_dtypes.bfloat16).view(np.uint16)
    values.reshape(-1, 128)[np.random.default_rng(3).random(size // 128) < 0.5] = 0
    return values


def _scattered_zeros(per_cent: float, size: int) -> Any:
    values = _normal(size).astype(ml_dtypes.bfloat16).view(np.uint16)
    values[np.random.default_rng(5).random(size) < per_cent / 100] = 0
    return values


def _one_exponent(size: int) -> Any:
    """Words of either sign; nearly all magnitudes lie between 1 and 2."""
    generator = np.random.default_rng(6)
    values = generator.uniform(0.9997, 1.9, size) * generator.choice([-1, 1], size)
    return values.astype(ml_dtypes.bfloat16)


def _wide(size: int) -> Any:
    """Words of either sign; exponents over a wide range."""
    generator = np.random.default_rng(7)
    return (np.exp(4 * generator.standard_normal(size)) * generator.choice([-1e-12, 1e-12], size)).astype(np.float32)


def _trimmed_by_run(size: int) -> Any:
    """Runs of 256 words with 0, 8 and 16 zero bits at their ends, in turn."""
    zeros = np.resize(np.repeat(np.array([0, 8, 16], np.uint32), 256), size)
    return _normal(size).view(np.uint32) >> zeros << zeros


def _integers(size: int) -> Any:
    return np.random.default_rng(4).integers(1, 1024, size)


def measure_all(rounds: int) -> dict[str, Any]:
    """Rows of all cases on this process's CPU target, and the clock in GHz."""
    with tempfile.TemporaryDirectory() as folder, pinned(1):
        clock = load_clock(Path(folder))
        rows = [measure(case, rounds, clock) for case in cases()]
        return {"clock_ghz": clock() / 1e9, "rows": rows}


def run(rounds: int) -> dict[str, Any]:
    """The results: rows on every CPU target that is here."""
    facts = environment.describe("python -m benchmarks.codecs.cycles", environment.RESULTS)
    found = environment.on_each_target(measure_all, rounds)
    facts["clock_ghz"] = median(each["clock_ghz"] for each in found.values())
    return summary.rounded({"environment": facts, "rows": [row for each in found.values() for row in each["rows"]]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="of each coder (default: 15)")
    PAGE.keep(run(parser.parse_args().rounds), environment.RESULTS)


if __name__ == "__main__":
    main()
