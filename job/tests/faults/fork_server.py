"""The process that forks ranks, as seen from here: fork_server_process.py is what it runs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.environment import child

_START_SECONDS = 60.0


class ForkServer:
    """Starts the process and speaks with it. `environment` is of all that it forks."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.fork_server_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", PYTHONFAULTHANDLER="", **environment),
            start_new_session=True,  # Ctrl-C is for us, who clean up
        )
        self._buffered = b""
        self._gone: dict[int, int] = {}
        self._answer("ready")

    def start(
        self,
        arguments: list[str],
        environment: dict[str, str],
        output: Path,
        network: int | None = None,
        errors: Path | None = None,
    ) -> int:
        """Fork a process that runs a module as `python -m` does; gives its pid. By default errors go to the output."""
        paths = {"output": str(output), "errors": str(errors or output)}
        self._send({"arguments": arguments, "environment": environment, **paths, "network": network})
        return self._answer("pid")

    def status(self, pid: int) -> int | None:
        """The exit status, negative for a signal; None while it lives."""
        while b"\n" in self._buffered or select.select([self._process.stdout], [], [], 0)[0]:
            self._read()
        return self._gone.get(pid)

    def kill(self, pids: list[int]) -> None:
        """End processes and wait for it."""
        for pid in pids:
            self._send({"kill": pid})
        deadline = time.monotonic() + _START_SECONDS
        while any(self.status(pid) is None for pid in pids):
            if time.monotonic() > deadline:
                raise TimeoutError("processes do not end")
            time.sleep(0.002)

    def kill_all(self) -> None:
        """End whatever was forked, and all that these processes have started."""
        deadline = time.monotonic() + _START_SECONDS
        while pids := _descendants(self._process.pid):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError("processes do not end")
            time.sleep(0.01)

    def close(self) -> None:
        """Ends everything that was started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the ranks die with it
            self._process.wait()
        self._process.stdout.close()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self, name: str) -> int:
        while True:
            answer = self._read()
            if answer is not None and name in answer:
                return int(answer[name])

    def _read(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        while b"\n" not in self._buffered:
            if not select.select([self._process.stdout], [], [], _START_SECONDS)[0]:
                raise TimeoutError("the process that starts ranks does not answer")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise OSError("the process that starts ranks has ended")
            self._buffered += data
        line, self._buffered = self._buffered.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "gone" in answer:
            self._gone[answer["gone"]] = answer["status"]
            return None
        return answer


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
