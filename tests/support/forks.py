"""Processes that are forked where a test would begin a program: they import nothing anew."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Environment = Mapping[str, str]


def popen(
    act: Callable[[], int | None],
    environment: Environment | None = None,
    *,
    start: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,  # also where a test has put another one there
    **options: Any,
) -> subprocess.Popen[Any]:
    """A process that runs a function, and ends with the code that it returns."""
    return start(**_forking(act, environment or {}, options))


def run(
    act: Callable[[], int | None], environment: Environment | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """How a process ends that runs a function."""
    return subprocess.run(check=False, **_forking(act, environment or {}, options))


def _forking(act: Callable[[], int | None], environment: Environment, options: dict[str, Any]) -> dict[str, Any]:
    begin = lambda: become(act, environment)  # noqa: E731
    return {"args": ["forked"], **options, "preexec_fn": begin, "restore_signals": False}


def become(act: Callable[[], int | None], environment: Environment) -> None:
    """Run a function where a process would begin another program, which ends with the code that it returns."""
    os.environ.update(environment)
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if number > 2:
            with contextlib.suppress(OSError):  # that of the list
                os.close(number)
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        stream: Any = open(number, mode)  # noqa: PTH123, SIM115
        stream.buffer.raw.name = f"<{name}>"
        setattr(sys, name, stream)
    code = 99
    try:
        code = act() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
