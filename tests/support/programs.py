"""Programs that need torch, each in a process of its own, without importing torch each time.

    with Programs("tensorwire.torch") as programs:
        assert programs.run("print(1 + 1)").stdout == "2\n"

One process imports what all of them need, and does nothing else: it forks a child for each program. A program that goes
well ends as any program does, but for the last thing that Python does, which is to take down all modules: of torch's it
takes a second. `whole=True` has it do that too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

_START_SECONDS = 90  # torch's import on a loaded machine
_SERVER = """
import atexit, gc, json, os, sys, threading, warnings
for name in sys.argv[1:]:
    __import__(name)
gc.collect()
gc.freeze()  # what was imported stays: no search for garbage copies its pages into the children
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, place in enumerate((os.devnull, *job["places"])):
    os.dup2(os.open(place, os.O_RDWR), number)
os.chdir(job["folder"])
sys.argv = ["-c", *job["arguments"]]
if job["warnings"]:
    warnings.simplefilter(job["warnings"])
exec(compile(job["code"], "<program>", "exec"), {"__name__": "__main__"})
if not job["whole"]:
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
"""


class Programs:
    """Programs in Python that share modules and an environment. The first one starts the process that forks."""

    def __init__(self, *modules: str, **environment: str) -> None:
        self._command = [sys.executable, "-c", _SERVER, *modules]
        self._environment = environment
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, code: str, *arguments: object, seconds: float = 60, folder: str | Path = ".", whole: bool = False,
        warnings: Literal["error"] | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """A program, which must end in time. `warnings="error"` makes errors of its own, as `python -W error` does."""
        with tempfile.TemporaryDirectory() as results:
            places = [Path(results) / name for name in ("out", "err")]
            for place in places:
                place.touch()
            job: dict[str, Any] = {"code": code, "arguments": [*map(str, arguments)], "places": [*map(str, places)]}
            job |= {"folder": str(Path(folder).resolve()), "whole": whole, "warnings": warnings}
            server = self._started()
            assert server.stdin is not None
            server.stdin.write(json.dumps(job) + "\n")
            server.stdin.flush()
            code_of_end = int(self._answer(seconds))
            out, err = (place.read_text() for place in places)
        return subprocess.CompletedProcess(self._command, code_of_end, out, err)

    def close(self) -> None:
        """End the process, and a program that has not ended."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.communicate()
            self._server = None

    def _started(self) -> subprocess.Popen[str]:
        if self._server is None:
            self._server = subprocess.Popen(
                self._command, env={**os.environ, **self._environment}, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert self._answer(_START_SECONDS) == "ready\n"
        return self._server

    def _answer(self, seconds: float) -> str:
        assert self._server is not None
        assert self._server.stdout is not None
        if not select.select([self._server.stdout], [], [], seconds)[0]:
            self.close()
            raise AssertionError(f"no end in {seconds} s")
        return self._server.stdout.readline()
