"""Processes that tests start."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorwire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

KILLED = 17
"""How a process ends that `kill_at` has ended."""
OTHER_USER = 65534


def bare_python(*more: ModuleType) -> dict[str, str]:
    """An environment in which `python -S`, which starts in no time, finds tensorwire, and more
    packages of ours, wherever they are installed."""
    folders = (str(Path(str(package.__file__)).parents[1]) for package in (tensorwire, *more))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}


PRINT_PEAK_MEMORY = """
import pathlib
print(1024 * int(pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]))
"""
"""Code that ends a program in a process of its own, and prints the most bytes of memory that it has had at once.
ru_maxrss would not do: a process inherits it from the one that started it, here from one that ran other tests."""


def exit_code_of_child(child: int, seconds: float) -> int:
    """The exit code of a forked child, which must end in time."""
    deadline = time.monotonic() + seconds
    while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(status[1])


def begin(child: Callable[[], object]) -> int:
    """A forked process that runs a function and ends, within a minute; its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        process = os.fork()
    if process == 0:
        code = 99
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            child()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return process


def exit_codes(children: Iterable[Callable[[], object]]) -> list[int]:
    """How forked processes end that run functions at once: 0 where the function returned."""
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in [begin(child) for child in children]]


def exit_code(child: Callable[[], object]) -> int:
    return exit_codes([child])[0]


def kill_at(step: int, calls: Iterable[tuple[Any, str]], *, after: bool = False) -> None:
    """From here on, have the process end before one of these calls, or after it."""
    counted = [0]

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            counted[0] += 1
            is_last = counted[0] == step
            if is_last and not after:
                os._exit(KILLED)
            result = call(*arguments, **options)
            if is_last:
                os._exit(KILLED)
            return result

        return run

    for owner, name in calls:
        setattr(owner, name, watched(getattr(owner, name)))


def killing(
    calls: Iterable[tuple[Any, str]], stride: int = 1, first: int = 1
) -> Iterator[Callable[[Callable[[], object]], int]]:
    """Give a function again and again that runs another one in a process, and returns its exit code. The process ends
    before the first of these calls, then before a later one, and in the last round not at all."""
    calls, step, code = list(calls), first, KILLED

    def kill(act: Callable[[], object]) -> int:
        nonlocal code

        def child() -> None:
            kill_at(step, calls)
            act()

        code = exit_code(child)
        assert code in (KILLED, 0)
        return code

    while code == KILLED:
        yield kill
        step += stride
