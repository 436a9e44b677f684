"""A contender's process, seen from the process that gives it orders."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from benchmarks import environment

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from benchmarks.inference.memory import Limit

AVX2 = {"TENSORWIRE_CPU": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
"""Holds our kernels and torch's to AVX2."""
_PATIENCE_SECONDS = 300.0
"""For an answer. Where the limit of memory leaves a process a few pages of its mapped files, the kernel reads them anew
for hours before it kills the process."""


class ContenderError(Exception):
    """A contender's process ended before it had answered; says why."""


class Process:
    """Started at once; ready for orders inside its ``with`` statement, where torch is imported and warm."""

    def __init__(
        self,
        name: str,
        size: str,
        folder: Path,
        threads: int,
        variables: dict[str, str] | None = None,
        limit: Limit | None = None,
    ) -> None:
        line = [sys.executable, "-m", "benchmarks.inference.contest", name, "--size", size]
        line += ["--folder", str(folder), "--threads", str(threads)]
        if limit:
            line += ["--cgroup", str(limit.folder), "--limit", str(limit.nbytes)]
        env = environment.child(**(variables or {}))
        self._gave_up = False
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, text=True, env=env
        )

    def __call__(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Give an order and wait for the answer.

        Raises:
            ContenderError: the process has ended, or does not answer and was killed.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def __enter__(self) -> Process:
        try:
            self._answer()
        except ContenderError:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()  # its memory is what takes time to give back
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._complaints):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        patience = threading.Timer(_PATIENCE_SECONDS, self._give_up)
        patience.start()
        line = self._process.stdout.readline()
        patience.cancel()
        if not line:
            raise ContenderError(self._reason())
        found: dict[str, Any] = json.loads(line)
        return found

    def _give_up(self) -> None:
        self._gave_up = True
        self._process.kill()

    def _reason(self) -> str:
        status = self._process.wait()
        if self._gave_up:
            return f"not done after {_PATIENCE_SECONDS:.0f} s, and killed"
        if status == -9:
            return "killed: out of memory"
        self._complaints.seek(0)
        lines = self._complaints.read().strip().splitlines()
        return lines[-1] if lines else f"ended with status {status}"
