"""A command of the user's that is run for each new finding: a page to a person, a message to a channel.

Texts from ranks reach it as data only, on standard input and in its environment. No shell reads any of them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tensorwire._ground.copies import not_copied
from tensorwire._ground.text import escape

if TYPE_CHECKING:
    from ..model import Finding

LIMIT_SECONDS: Final = 30.0
"""After them the command, and what it has started, is killed."""
_STACK_SECONDS: Final = 5.0  # that a stack may take to come
_FORGET_SECONDS: Final = 600.0  # a finding that comes back later is new again
_MAX_WAITING: Final = 16
_MAX_VALUE: Final = 4096  # characters of an environment variable
_MAX_STDERR: Final = 4096  # bytes of it that are kept
_MAX_WORDS: Final = 200  # characters of its last line that are told
_LOOK_SECONDS: Final = 0.1  # between two looks whether the watch has ended

_Key = tuple[str, str, tuple[int, ...]]


@dataclasses.dataclass(slots=True)
class _Told:
    first: float
    last: float  # seen at all
    was_run: bool = False


class FindingCommand:
    """Runs a command for each new finding, one at a time, in a thread of its own. `take` never waits.

    A finding is new if none of its job with the same code and suspects was seen in the last ten minutes. Notices are
    none. The command is run once the finding has its stacks, after 5 s at the latest.

    Args:
        arguments: the program and its arguments.
        say: called with what went wrong, in any thread. The same trouble is told once.
        place: where more can be asked about the job; without it, the command is given the run's id.
    """

    __reduce_ex__ = not_copied("a thread", "make another one")

    def __init__(self, arguments: Sequence[str], say: Callable[[str], None], place: str = "") -> None:
        self._arguments = list(arguments)
        self._place = place
        self._say = say
        self._told: dict[_Key, _Told] = {}
        self._held: dict[_Key, Finding] = {}  # until their stacks come
        self._trouble = ""
        self._queue: queue.SimpleQueue[tuple[str, Finding] | None] = queue.SimpleQueue()
        self._is_left = threading.Event()
        self._thread = threading.Thread(target=self._work, name="on finding", daemon=True)
        self._thread.start()

    def take(self, run_id: str, findings: Sequence[Finding]) -> None:
        """Take the findings that stand now."""
        now = time.monotonic()
        self._told = {
            key: told for key, told in self._told.items() if key in self._held or now - told.last < _FORGET_SECONDS
        }
        for finding in findings:
            if finding.level == "finding":
                key: _Key = (run_id, finding.code, tuple(sorted(finding.suspects)))
                self._told.setdefault(key, _Told(now, now)).last = now
                if not self._told[key].was_run:
                    self._held[key] = finding
        for held, finding in list(self._held.items()):
            if finding.stacks or now - self._told[held].first >= _STACK_SECONDS:
                self._give(held)

    def close(self) -> None:
        """Run what was held back, and wait until the last command has ended, for 30 s at most. Ctrl-C ends it."""
        for key in list(self._held):
            self._give(key)
        self._queue.put(None)
        with suppress(KeyboardInterrupt):
            self._thread.join(LIMIT_SECONDS)
        self._is_left.set()
        self._thread.join()

    def _give(self, key: _Key) -> None:
        finding = self._held.pop(key)
        self._told[key].was_run = True
        if self._queue.qsize() < _MAX_WAITING:
            self._queue.put((key[0], finding))
        else:
            self._complain(f"it is too slow; not run for {finding.code}")

    def _work(self) -> None:
        while (next_one := self._queue.get()) is not None and not self._is_left.is_set():
            self._complain(self._run(*next_one))

    def _complain(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._say(f"the command of --on-finding failed: {trouble}")
        self._trouble = trouble

    def _run(self, run_id: str, finding: Finding) -> str:
        """Run the command to its end; returns what went wrong, or nothing."""
        job = self._place or run_id
        told = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "job": job, **dataclasses.asdict(finding)}
        try:
            with tempfile.TemporaryFile() as given:  # a pipe would block on a command that does not read
                given.write(json.dumps(told).encode() + b"\n")
                given.seek(0)
                with subprocess.Popen(
                    self._arguments,
                    stdin=given,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    # In bytes: where the locale is not UTF-8, some words could not be told otherwise.
                    env={**os.environb, **{name.encode(): v.encode() for name, v in variables(job, finding).items()}},
                    start_new_session=True,
                ) as process:
                    return self._watch(process)
        except OSError as error:
            return error.strerror or str(error)

    def _watch(self, process: subprocess.Popen[bytes]) -> str:
        """Wait until it has ended and all that it has started has closed standard error, or the time is up."""
        assert process.stderr is not None
        words, is_open = b"", True
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline and not self._is_left.is_set():
            if not is_open:
                with suppress(subprocess.TimeoutExpired):
                    return _outcome(process.wait(_LOOK_SECONDS), words)
            elif select.select([process.stderr], [], [], _LOOK_SECONDS)[0]:
                data = os.read(process.stderr.fileno(), 1 << 16)
                words, is_open = (words + data)[-_MAX_STDERR:], bool(data)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it was not waited for: the number is still its own
        process.wait()
        return "" if self._is_left.is_set() else f"it took longer than {LIMIT_SECONDS:g} s and was killed"


def variables(job: str, finding: Finding) -> dict[str, str]:
    """Variables for the command's environment. Each value is one line of printable characters."""
    values = {
        "CODE": finding.code,
        "SUSPECTS": ",".join(map(str, finding.suspects)),
        "CONFIDENCE": finding.confidence.value,
        "HEADLINE": finding.summary,
        "JOB": job,
    }
    return {f"TENSORWIRE_FINDING_{name}": escape(value)[:_MAX_VALUE] for name, value in values.items()}


def _outcome(code: int, words: bytes) -> str:
    if code == 0:
        return ""
    end = f"exit code {code}" if code > 0 else f"signal {-code}"
    last = words.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return f"{end}: {escape(last)[:_MAX_WORDS]}" if last else end
