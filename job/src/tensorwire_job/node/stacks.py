"""Where in the code a suspect stands: three ways to find out, the least intrusive first.

torch's worker server, which ranks start when they are first asked, answers from a thread of its own, once that gets the
interpreter lock. py-spy reads the memory of any rank, a stopped one too, where it is installed and ptrace is allowed.
A signal has `faulthandler` write the stacks from C, even while one thread keeps the lock forever, and needs nothing
installed. It may cut a sleep in C code short, so it comes last.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..page import process, worker_server
from ..page.control import request_servers
from ..page.stack_file import SIGNAL, stack_path
from . import workers

_ANSWER_SECONDS = 2.0
_START_SECONDS = 1.0  # some heartbeats of the probe
_PY_SPY_SECONDS = 15.0
_MAX_NBYTES = 1 << 16
_MAX_WORKERS = 4


@dataclass(frozen=True, slots=True)
class StackTarget:
    """A rank to be asked."""

    pid: int
    start_ticks: int  # with the pid it names the process
    page: Path  # the stack file and the worker server's socket have its name
    doing: str  # its last operation, for want of better


class _UnavailableError(Exception):
    pass


def fetch(target: StackTarget) -> str:
    """The stacks of a rank's threads and children, or its last operation and why there is no stack.

    May take seconds.
    """
    try:
        text = _fetch(target)
    except _UnavailableError as error:
        text = f"{target.doing}\nstack unavailable: {error}"
    return "\n".join([text, *_of_workers(target)])[:_MAX_NBYTES]


def _of_workers(target: StackTarget) -> Iterator[str]:
    """The stacks of child processes. Most are workers of the data loader, and the rank may wait for one of them."""
    stat = process.read_stat(target.pid)
    if stat is None or stat.start_ticks != target.start_ticks:
        return
    for worker in workers.read(target.pid)[:_MAX_WORKERS]:
        started = process.read_stat(worker.pid)
        if started is None:
            continue
        waits = f" in {worker.wait_channel}" if worker.wait_channel else ""
        yield f"\nprocess {worker.pid} ({worker.name}), state {worker.state}{waits}:"
        own = replace(target, pid=worker.pid, start_ticks=started.start_ticks)
        reasons: list[str] = []
        ways = (_py_spy,) if started.is_stopped else (_py_spy, _signal)  # the worker server is the rank's
        texts = (_try(way, own, reasons) for way in ways)
        yield next((text for text in texts if text is not None), f"stack unavailable: {', '.join(reasons)}")


def _fetch(target: StackTarget) -> str:
    stat = process.read_stat(target.pid)
    if stat is None or stat.start_ticks != target.start_ticks or not stat.is_alive:
        raise _UnavailableError("the process is gone")
    ways = (_py_spy,) if stat.is_stopped else (_worker_server, _py_spy, _signal)
    reasons = ["the process is stopped"] if stat.is_stopped else []
    for way in ways:
        text = _try(way, target, reasons)
        if text is not None:
            return text
    raise _UnavailableError(", ".join(reasons))


def _try(way: Callable[[StackTarget], str], target: StackTarget, reasons: list[str]) -> str | None:
    try:
        return way(target)
    except _UnavailableError as error:
        reasons.append(str(error))
        return None


def _worker_server(target: StackTarget) -> str:
    try:
        _await_server(target.page)
        return worker_server.dump_traceback(target.page, timeout=_ANSWER_SECONDS)
    except FileNotFoundError:
        raise _UnavailableError("it has no worker server") from None
    except (OSError, ValueError) as error:
        raise _UnavailableError(f"its worker server does not answer ({error})") from None


def _await_server(page: Path) -> None:
    path = worker_server.socket_path(page)
    if path.exists():
        return
    request_servers(page.parent)
    deadline = time.monotonic() + _START_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.02)  # the file is there before the server listens


def _catches(pid: int) -> bool:
    """Whether a process has a handler for the signal, which would end it otherwise."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (SIGNAL - 1) & 1)


def _signal(target: StackTarget) -> str:
    try:
        if not _catches(target.pid):
            raise _UnavailableError("it has no handler for the signal")
        # One file from here on, and no link to another: it is emptied.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(stack_path(target.page), flags), "r+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_uid != _owner(target.pid):
                raise _UnavailableError("it has no handler for the signal")
            file.truncate(0)
            _send_signal(target)
            deadline = time.monotonic() + _ANSWER_SECONDS
            size = 0
            while time.monotonic() < deadline:
                time.sleep(0.02)
                before, size = size, os.fstat(file.fileno()).st_size
                if size and size == before:
                    return file.read(_MAX_NBYTES).decode(errors="replace")
    except OSError as error:
        raise _UnavailableError(f"it cannot be sent a signal ({error})") from None
    raise _UnavailableError(f"it did not react to a signal within {_ANSWER_SECONDS:g} s")


def _owner(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116


def _send_signal(target: StackTarget) -> None:
    descriptor = os.pidfd_open(target.pid)  # from here on the number cannot become another process
    try:
        stat = process.read_stat(target.pid)
        if stat is None or stat.start_ticks != target.start_ticks:
            raise ProcessLookupError("it is gone")
        signal.pidfd_send_signal(descriptor, SIGNAL)
    finally:
        os.close(descriptor)


def _py_spy(target: StackTarget) -> str:
    own = sysconfig.get_path("scripts")  # whose environment need not be activated
    program = shutil.which("py-spy") or shutil.which("py-spy", path=own)
    if program is None:
        raise _UnavailableError("py-spy is not installed")
    command = [program, "dump", "--nonblocking", "--pid", str(target.pid)]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PY_SPY_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise _UnavailableError(f"py-spy took more than {_PY_SPY_SECONDS:g} s") from None
    except OSError as error:
        raise _UnavailableError(f"py-spy failed: {error}") from None
    if result.returncode != 0:
        reason = result.stderr.strip().splitlines()
        raise _UnavailableError(f"py-spy failed: {reason[0] if reason else result.returncode}")
    return result.stdout
