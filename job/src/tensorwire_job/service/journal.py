"""The analyzer's directory: findings, a recording, and the present state for other commands.

    findings.jsonl       a line for each finding when it comes up, and again with its stacks
    recording.jsonl.gz   observations, for `tensorwire-job report` and for analyzing them again, see :mod:`recording`
    state.json           the last observation and its findings, always whole

The first two are moved to a name with .1 when they have grown, so the directory stays bounded.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from tensorwire._ground.copies import not_copied
from tensorwire._ground.new_file import NewFile, check_regular, move_aside, open_to_append
from tensorwire.errors import CorruptDataError

from ..model import CircleRank, Code, Confidence, Finding, Level, Thresholds
from .recording import (
    NO_JSON_OF_OURS,
    RecordingWriter,
    append_whole,
    decode_observation,
    decode_thresholds,
    encode_observation,
)
from .time_share import TimeShare

if TYPE_CHECKING:
    from ..model import Observation

FINDINGS: Final = "findings.jsonl"
RECORDING: Final = "recording.jsonl.gz"
STATE: Final = "state.json"
_MAX_FINDINGS_NBYTES = 16 << 20
_MAX_STATE_NBYTES = 1 << 30
_MAX_SHARE = 0.05  # of the time goes into writing: of very large jobs less is kept
_VERSION = 1


class Journal:
    """Writes to a directory, which is made if it is not there. For one thread.

    Nothing is ever half written: the state is replaced whole, the others grow by whole lines.

    Args:
        thresholds: those that findings are made with, for readers.

    Raises OSError, here and below, if the directory cannot be written; FileExistsError if a file is in the way that no
    analyzer has written, BlockingIOError if another analyzer writes to it.
    """

    __reduce_ex__ = not_copied("the lock of its directory", "read the directory by its path")

    def __init__(self, directory: Path, thresholds: Thresholds | None = None) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _lock(directory)
        for name, start in ((FINDINGS, b'{"at":'), (FINDINGS + ".1", b'{"at":'), (STATE, b'{"version":')):
            _check_ours(directory / name, start)
        self._directory = directory
        self._thresholds = thresholds or Thresholds()
        self._recorder = RecordingWriter(directory / RECORDING, self._thresholds)
        self._logged: dict[tuple[object, ...], int] = {}
        self._due = 0.0
        self._share = TimeShare(_MAX_SHARE)

    def write(self, observation: Observation, findings: list[Finding]) -> None:
        """Take an observation and its findings, once a second."""
        self._log(findings)
        start = time.monotonic()
        if start >= self._due:
            self._recorder.write(observation)
            self._write_state(observation, findings)
            end = time.monotonic()
            self._due = end + self._share.rest_after(end - start)

    def add_stack(self, rank: int, text: str) -> None:
        """Take a stack that the analyzer was given."""
        self._recorder.add_stack(rank, text)

    def close(self) -> None:
        self._recorder.close()
        os.close(self._lock)

    def _log(self, findings: list[Finding]) -> None:
        present = {finding.identity(): len(finding.stacks) for finding in findings}
        news = [finding for finding in findings if self._logged.get(finding.identity()) != len(finding.stacks)]
        if not news:
            self._logged = present
            return
        path = self._directory / FINDINGS
        if check_regular(path) and path.stat().st_size > _MAX_FINDINGS_NBYTES:
            move_aside(path)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        lines = [json.dumps({"at": stamp, **dataclasses.asdict(finding)}) + "\n" for finding in news]
        with open_to_append(path) as file:
            append_whole(file, "".join(lines).encode())
        self._logged = present

    def _write_state(self, observation: Observation, findings: list[Finding]) -> None:
        told = [dataclasses.asdict(finding) for finding in findings]
        state = {
            "version": _VERSION,
            "thresholds": dataclasses.asdict(self._thresholds),
            **encode_observation(observation, {}),
            "findings": told,
        }
        file = NewFile(self._directory / STATE, force=True, example=STATE)
        file.write(json.dumps(state, separators=(",", ":")).encode(), sync=False)  # the next one comes in a second


def _lock(directory: Path) -> int:
    """A descriptor of the directory; one process at a time has it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        text = "another analyzer writes here; name another directory"
        raise BlockingIOError(errno.EWOULDBLOCK, text, str(directory)) from None
    return descriptor


def _check_ours(path: Path, start: bytes) -> None:
    """Raise FileExistsError if a file is there that no analyzer has written."""
    if check_regular(path):
        with path.open("rb") as file:
            if not start.startswith(found := file.read(len(start))):
                text = f"is not a file of an analyzer: it begins with {found!r}; move it, or name another directory"
                raise FileExistsError(errno.EEXIST, text, str(path))


def read_state(directory: Path) -> tuple[Observation, list[Finding], Thresholds]:
    """The last observation, the findings and the thresholds of the analyzer that writes to `directory`.

    Raises:
        CorruptDataError: the file is not one of this version's analyzer.
        OSError: there is none.
    """
    path = directory / STATE
    with path.open("rb") as file:
        data = file.read(_MAX_STATE_NBYTES)
    try:
        state: dict[str, Any] = json.loads(data)
        if state["version"] != _VERSION:
            raise ValueError("the version is not one of this release")
        thresholds = decode_thresholds(state["thresholds"])
        observation = decode_observation(state, {})
        findings = [_finding(entry) for entry in state["findings"]]
    except NO_JSON_OF_OURS as error:
        message = f"expected the state of an analyzer of this version: {error}"
        raise CorruptDataError(message, file=path, advice="start the analyzer again, with this tensorwire") from None
    return observation, findings, thresholds


class AnalyzerState:
    """The state that an analyzer writes to a directory, to be polled.

    Attributes:
        silent_seconds: since it wrote last, when this object was made.
        thresholds: of the analyzer, once it was polled.

    Raises FileNotFoundError if no analyzer has written there.
    """

    awaits_stacks = False
    thresholds: Thresholds | None = None

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            self.silent_seconds = time.time() - (directory / STATE).stat().st_mtime
        except FileNotFoundError as error:
            message = "no analyzer has written here; start one with tensorwire-job analyzer --analyzer-dir"
            raise FileNotFoundError(errno.ENOENT, message, str(directory)) from error

    def poll(self) -> tuple[Observation, list[Finding]]:
        """The last state; raises as `read_state` does."""
        observation, findings, self.thresholds = read_state(self._directory)
        return observation, findings


def _finding(entry: dict[str, Any]) -> Finding:
    code, level = entry["code"], entry["level"]
    if code not in get_args(Code) or level not in get_args(Level):
        raise ValueError(f"expected the code and the level of a finding, got {code!r} and {level!r}")
    return Finding(
        code=code,
        level=level,
        time=float(entry["time"]),
        suspects=[int(rank) for rank in entry["suspects"]],
        sides=[[int(rank) for rank in side] for side in entry["sides"]],
        process_group=str(entry["process_group"]),
        summary=str(entry["summary"]),
        evidence=[str(fact) for fact in entry["evidence"]],
        confidence=Confidence(entry["confidence"]),
        victims=int(entry["victims"]),
        stacks={int(rank): str(text) for rank, text in entry["stacks"].items()},
        since=None if entry["since"] is None else float(entry["since"]),
        ended=[int(rank) for rank in entry["ended"]],
        circle=[CircleRank(int(link["rank"]), str(link["waits_in"])) for link in entry["circle"]],
    )
