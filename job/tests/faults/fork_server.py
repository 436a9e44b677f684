"""The process that forks ranks, as seen from here: fork_server_process.py is what it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.environment import child

if TYPE_CHECKING:
    from collections.abc import Callable

_START_SECONDS = 60.0


class ForkServer:
    """Starts the process and speaks with it. `environment` is of all that it forks."""

    def __init__(self, **environment: str) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.fork_server_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=child(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", PYTHONFAULTHANDLER="", **environment),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for us, who clean up
            )
        self._gone: dict[int, int] = {}
        self._answer()

    def start(
        self,
        arguments: list[str],
        environment: dict[str, str],
        output: Path,
        network: int | None = None,
        errors: Path | None = None,
    ) -> int:
        """Fork a process that runs a module as `python -m` does; gives its pid. By default errors go to the output."""
        self._connection.send((arguments, environment, str(output), str(errors or output), network))
        pid = self._answer()
        self._gone.pop(pid, None)  # one that has ended may have had this number
        return pid

    def status(self, pid: int) -> int | None:
        """The exit status, negative for a signal; None while it lives."""
        while self._connection.poll():
            self._note(self._connection.recv())
        return self._gone.get(pid)

    def kill(self, pids: list[int]) -> None:
        """End processes and wait for it."""
        for pid in pids:
            self._connection.send(pid)
        self._await(lambda: all(self.status(pid) is not None for pid in pids))

    def kill_all(self) -> None:
        """End whatever was forked, and all that these processes have started."""

        def are_gone() -> bool:
            pids = _descendants(self._process.pid)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        self._await(are_gone)

    def _await(self, are_gone: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not are_gone():
            if time.monotonic() > deadline:
                raise TimeoutError("processes do not end")
            time.sleep(0.005)

    def close(self) -> None:
        """Ends everything that was started."""
        self._connection.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the ranks die with it
            self._process.wait()

    def _answer(self) -> int:
        """What it says next but for who has ended."""
        while self._connection.poll(_START_SECONDS):
            said = self._connection.recv()
            if isinstance(said, int):
                return said
            self._note(said)
        raise TimeoutError("the process that starts ranks does not answer")

    def _note(self, ended: tuple[int, int]) -> None:
        pid, status = ended
        self._gone[pid] = status


def _descendants(ancestor: int) -> set[int]:
    """Processes that live and come from this one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(path.parent.name)] = int(parent)
    found: set[int] = set()
    new = {ancestor}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found
