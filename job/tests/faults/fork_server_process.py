"""A process that has imported torch once and forks the ranks of job after job, which saves seconds for each.

It reads JSON lines: {"environment": ..., "arguments": [module, ...], "network": pid or null, "output": path, "errors":
path} forks a process that runs the module as `python -m` does, in the network namespace of `pid`; {"kill": pid} kills
one of them. It answers with lines {"pid": ...} for each fork, and {"gone": pid, "status": ...} whenever one has ended.
Everything dies with it, and it dies with its standard input: nothing is left behind, whatever becomes of what started
it. TW_FAULTS_IMPORTS names more modules that it imports at first.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _serve() -> dict[str, Any] | None:
    """In the fork_server until its input ends, then None; in a forked rank, what it has to run."""
    fork_server = os.getpid()
    children: set[int] = set()
    wakeup, sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(sender)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    buffered = b""
    while True:
        ready, _, _ = select.select([0, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
            for pid, status in _ended():
                if pid in children:
                    children.discard(pid)
                    _say({"gone": pid, "status": os.waitstatus_to_exitcode(status)})
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, buffered = (buffered + data).split(b"\n")
            for request in map(json.loads, lines):
                if "kill" in request:
                    if request["kill"] in children:
                        os.kill(request["kill"], signal.SIGKILL)
                    continue
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore
                    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these, and so would all that they start
                    os.close(wakeup)
                    os.close(sender)
                    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                    if os.getppid() != fork_server:
                        os._exit(1)
                    return request
                children.add(pid)
                _say({"pid": pid})
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return None


def _ended() -> Iterator[tuple[int, int]]:
    """Children that have ended, and their status; those that ranks have left behind are among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def _say(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    for name in ("torch.utils.data", "torch.distributed", *os.environ.get("TW_FAULTS_IMPORTS", "").split()):
        importlib.import_module(name)  # this is what the fork_server is for
    gc.freeze()  # else a rank that ends looks through all of it once more, which takes a second
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what ranks leave behind is still to be found
    _say({"ready": os.getpid()})
    request = _serve()
    if request is None:
        return
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    if request["network"] is not None:
        with Path(f"/proc/{request['network']}/ns/net").open() as namespace:
            _check(ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET))
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
