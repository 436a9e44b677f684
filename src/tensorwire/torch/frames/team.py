"""torch's own team of threads, for the core to work on.

Threads of ours beside torch's would take its cores: its OpenMP threads spin for a while after each operation.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_PROCESS = os.getpid()


def team() -> int | None:
    """The address of GOMP_parallel in the OpenMP runtime that torch has loaded; None where there is none.

    None in a process that was forked, too: the threads stayed in its parent, and OpenMP would wait for them for ever.
    """
    return _gomp_parallel() if os.getpid() == _PROCESS else None


@functools.cache
def _gomp_parallel() -> int | None:
    """GNU's runtime has it, and LLVM's and Intel's for the sake of programs that GCC has compiled."""
    for library in _openmp_runtimes():
        try:
            function = ctypes.CDLL(library).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value
    return None


def _openmp_runtimes() -> list[str]:
    """The OpenMP libraries in this process, those beside torch first: there may be others."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    found = [path for path in paths if Path(path).name.startswith(("libgomp", "libiomp5", "libomp"))]
    return sorted(found, key=lambda path: "torch" not in path)
