"""A process that has imported torch once and forks the ranks of job after job, which saves seconds for each.

It is given the number of a descriptor, one end of a pipe of `multiprocessing`. (arguments, environment, output,
errors, network) forks a process that runs the module arguments[0] as `python -m` does, in the network namespace of the
process `network` if it is not None; a number kills one of them. It answers with its pid for each fork, and with (pid,
status) whenever one has ended. Everything dies with it, and it dies with the pipe: nothing is left behind.
TW_FAULTS_IMPORTS names more modules that it imports at first. A process with TW_FAULTS_ENDS=quickly leaves out what the
interpreter does to modules and objects when it goes, which would go through all that was forked with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import signal
import sys
import threading
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _serve(connection: Connection[Any, Any]) -> tuple[list[str], dict[str, str], str, str, int | None] | None:
    """In the server until the pipe ends, then None; in a forked rank, what it has to run."""
    server, children = os.getpid(), set()
    wakeup, sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(sender)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = wait([connection, wakeup])
        if wakeup in ready:
            os.read(wakeup, 4096)
            for pid, status in _ended():
                if pid in children:
                    children.discard(pid)
                    connection.send((pid, os.waitstatus_to_exitcode(status)))
        if connection not in ready:
            continue
        try:
            request = connection.recv()
        except EOFError:
            break
        if isinstance(request, int):
            _kill(children & {request})
            continue
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these, and so would all that they start
            connection.close()
            os.close(wakeup)
            os.close(sender)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
            return request
        children.add(pid)
        connection.send(pid)
    _kill(children)
    return None


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _ended() -> Iterator[tuple[int, int]]:
    """Children that have ended, and their status; those that ranks have left behind are among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def main() -> None:
    for name in ("torch.utils.data", "torch.distributed", *os.environ.get("TW_FAULTS_IMPORTS", "").split()):
        importlib.import_module(name)  # this is what the server is for
    gc.freeze()  # else a rank that ends looks through all of it once more, which takes a second
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what ranks leave behind is still to be found
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    connection.send(os.getpid())
    request = _serve(connection)
    if request is None:
        return
    arguments, environment, output, errors, network = request
    for stream, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    if network is not None:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/proc/{network}/ns/net").open() as namespace:
            if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.environ.update(environment)
    sys.argv = arguments
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    if os.environ.get("TW_FAULTS_ENDS") == "quickly":
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
