"""The diagnosis of jobs against NCCL itself: four ranks that share the GPU."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from benchmarks.device import tools
from benchmarks.device.runner import Row, Section

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench

_TESTS = "job/tests/nccl/test_nccl_device.py"
_RESULT = re.compile(rf"^{re.escape(_TESTS)}::(\S+) (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)
_SECONDS = 60.0
_TEST_SECONDS = 30  # so that a test that hangs shows the log of its job


def run(bench: Bench) -> Generator[Row, None, None]:
    line = [sys.executable, "-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider", f"--timeout={_TEST_SECONDS}", _TESTS]
    code, text = tools.output(line, min(_SECONDS, bench.left), PYTHONUNBUFFERED="1")
    for name, outcome in _RESULT.findall(text):
        yield {"what": name, "outcome": outcome.lower()}
    if code != 0:
        yield {"what": "all", "outcome": "over its time" if code is None else f"exit code {code}", "log": text[-6000:]}


SECTION = Section(
    "nccl",
    65,
    "Does the diagnosis of jobs work with NCCL itself?",
    f"`{_TESTS}`: four ranks share one GPU.",
    (("test", "what", ""), ("outcome", "outcome", "")),
    run,
)
