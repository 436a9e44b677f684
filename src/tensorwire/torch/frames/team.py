"""torch's own team of threads, for the core to work on.

Threads of ours beside torch's would take its cores: its OpenMP threads spin for a while after each operation.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

_BODY = ctypes.CFUNCTYPE(None)  # which leaves its argument where it is
_PARALLEL = ctypes.CFUNCTYPE(None, _BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
_MAPS = Path("/proc/self/maps")
_PROCESS = os.getpid()


def team() -> int | None:
    """The address of GOMP_parallel in the OpenMP runtime that torch has loaded; None where there is none.

    None in a process that was forked, too: the threads stayed in its parent, and OpenMP would wait for them for ever.
    """
    return _gomp_parallel() if os.getpid() == _PROCESS else None


def on_team(work: Callable[[], None], threads: int) -> None:
    """Call `work` on each of so many threads at once, those of the team; on this thread alone where there is none.

    On a team each operation of torch is for one thread. What `work` finds of the state that torch keeps for a thread,
    such as whether gradients are recorded, is that of a new one. What it raises first is raised here, once all have
    ended: the others go on until then.
    """
    parallel = team() if threads > 1 else None
    if parallel is None:
        work()
        return
    raised: list[BaseException] = []

    def call() -> Iterator[None]:
        try:
            yield
            work()
        except GeneratorExit:  # there were fewer threads
            return
        except BaseException as error:  # C would drop it
            raised.append(error)
        yield

    # The handler of a signal may raise where a function of Python begins, before any "try". A generator goes on inside
    # of one, and nothing but C comes before.
    calls = [call() for _ in range(threads)]
    for each in calls:
        next(each)
    _PARALLEL(parallel)(_BODY(map(next, calls).__next__), None, threads, 0)
    if raised:
        raise raised[0]


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
