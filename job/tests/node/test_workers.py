"""The processes below a rank's process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tensorwire_job.node import workers
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    import pytest

COMPILER = "while True: pass"
BUILD = f'sh -c "sh -c \'{sys.executable} -S -c \\"{COMPILER}\\"; :\'; :"; :'
"""A shell, as a build tool starts it, two more, and what works."""


def test_compiler_below_a_build_tool_is_seen_at_work() -> None:
    """Only it uses a CPU: what started it waits."""
    with subprocess.Popen(["sh", "-c", BUILD], start_new_session=True) as build:
        try:
            wait_for(lambda: any(found.cpu_seconds >= 0.2 for found in workers.read(build.pid)))
            below = workers.read(build.pid)
            assert [found.name for found in below if found.cpu_seconds >= 0.2] == [below[-1].name]
            assert [found.name for found in below[:-1]] == ["sh", "sh"]
        finally:
            os.killpg(build.pid, signal.SIGKILL)


def test_many_children_are_not_all_looked_below(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def children(pid: int) -> list[int]:
        asked.append(pid)
        return list(range(10 * pid, 10 * pid + 10)) if pid < 100 else []

    monkeypatch.setattr(workers, "_children", children)
    found = workers._below(1, 3)
    assert found[:32] == [*range(10, 20), *range(100, 110), *range(110, 120), *range(120, 122)]
    assert len(asked) < 40
