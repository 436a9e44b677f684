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
    gigabytes = nbytes * len(dense) / 1e9
    for name, opened in bench.engines().items():
        for profile in PROFILES:
            frames = [each.frame.clone() for each in compressed(dense, profile)]
            opened(frames[0].clone())  # compiles
            bench.settle()
            began = time.perf_counter()
            kept = [opened(frame) for frame in frames]
            bench.settle()
            seconds = time.perf_counter() - began
            yield {"what": profile, "by": name, "gigabytes": gigabytes, "milliseconds": seconds * 1e3 / gigabytes}
            del kept


SECTION = Section(
    "opening",
    8,
    "How long does it take to open frames?",
    "Of matrices of 14336 x 4096; a GB is one of dense weights. What the device does is waited for.",
    (("profile", "what", ""), ("kernels", "by", ""), ("GB", "gigabytes", ".2f"), ("ms a GB", "milliseconds", ".1f")),
    run,
)
