"""How long it takes to open frames: headers, launch data, counts of escapes and their check."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.device.measure import PROFILES, WORD_NBYTES, compressed
from benchmarks.device.runner import Row, Section

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench


def run(bench: Bench) -> Generator[Row, None, None]:
    shape = (64, 512) if bench.quick else (14336, 4096)
    nbytes = shape[0] * shape[1] * WORD_NBYTES
    dense = bench.weights(*shape, bench.rotation(nbytes))
    for profile in PROFILES:
        frames = [each.frame.clone() for each in compressed(dense, profile)]
        bench.settle()
        began = time.perf_counter()
        for frame in frames:
            bench.decoder(frame)
        bench.settle()
        seconds = time.perf_counter() - began
        gigabytes = nbytes * len(frames) / 1e9
        yield {"what": profile, "gigabytes": gigabytes, "milliseconds": seconds * 1e3 / gigabytes}


SECTION = Section(
    "opening",
    10,
    "How long does it take to open frames?",
    "Of matrices of 14336 x 4096; a GB is one of dense weights.",
    (("profile", "what", ""), ("GB", "gigabytes", ".2f"), ("ms a GB", "milliseconds", ".1f")),
    run,
)
