"""Whether the kernels touch memory that is not theirs: compute-sanitizer looks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.device import tools
from benchmarks.device.runner import Row, Section

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench

_SECONDS = 45.0
_DETECTED = 86  # exit code of compute-sanitizer that is no other program's


def run(bench: Bench) -> Generator[Row, None, None]:
    sanitizer = tools.find("compute-sanitizer")
    if sanitizer is None:
        yield {"what": "compute-sanitizer", "outcome": "it is not here"}
        return
    for tool, profile in (("memcheck", "resident"), ("memcheck", "fast"), ("racecheck", "resident")):
        line = [sanitizer, "--tool", tool, "--error-exitcode", str(_DETECTED), sys.executable]
        line += ["-m", "benchmarks.device.once", profile, "64", "256"]
        code, text = tools.output(line, min(_SECONDS, bench.left), PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        outcome = "nothing was found" if code == 0 else f"exit code {code}: {text[-600:]}"
        yield {"what": f"`{profile}`, {tool}", "outcome": outcome}


SECTION = Section(
    "memcheck",
    50,
    "What does compute-sanitizer find?",
    "A matrix of 64 x 256, decoded and multiplied.",
    (("what", "what", ""), ("outcome", "outcome", "")),
    run,
)
