"""A client of NCCL's RAS service: the ranks of each communicator, and how many collectives each has launched.

Every process of an NCCL job listens on ``localhost:28028``, or where ``NCCL_RAS_ADDR`` says, and answers for the whole
job: it is enough to ask one process of one node. NCCL 2.28.7 and later answer in JSON, which names every rank.

The protocol is that of NCCL's own client: the lines "CLIENT PROTOCOL 2", "TIMEOUT seconds", "SET FORMAT json" and
"STATUS". Each is answered by a line except the last, whose answer ends with the connection.

Experimental: it may change or go with any version.

RAS counts what the host has launched. It knows neither what a GPU has begun or finished, nor how many bytes went where.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tensorwire._ground.copies import not_copied
from tensorwire.errors import CorruptDataError, LimitExceededError, UnsupportedVersionError

__all__ = ["RasCommunicator", "RasCount", "RasProcess", "RasRank", "RasStatus", "query_ras"]

_DEFAULT_ADDRESS = "localhost:28028"
_PROTOCOL = 2
_EXTRA_SECONDS = 6  # NCCL adds five to its timeout; one is for the way
_MAX_LINE = 4096
_MAX_ANSWER = 256 << 20  # a job of 16,384 ranks in five communicators each takes some 60 MB of JSON
_IN_PROGRESS = 7  # ncclInProgress
_RESULTS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}


@dataclass(frozen=True, slots=True)
class RasProcess:
    host: str
    pid: int


@dataclass(slots=True)
class RasRank:
    """One rank of a communicator."""

    rank: int  # within the communicator
    process: RasProcess | None = None  # None where RAS does not know it
    device: int = -1  # the process's CUDA device; -1 unknown
    status: str = ""  # RAS's own words: INIT, RUNNING, FINALIZE, ABORT, or NOCOMM: not a member any more; "" unknown
    error: str = ""


@dataclass(slots=True)
class RasCount:
    """The ranks that have launched the same number of operations of one kind."""

    function: str  # "AllReduce", "Broadcast", ...
    launched: int
    ranks: list[int]


@dataclass(slots=True)
class RasCommunicator:
    hash: str  # 16 hexadecimal digits, as the pages of the profiler plugin name it
    size: int = 0  # 0 unknown
    ranks: list[RasRank] = field(default_factory=list)  # that answered
    missing: list[RasRank] = field(default_factory=list)  # that did not answer, or deny being members
    counts: list[RasCount] = field(default_factory=list)

    def behind(self) -> dict[str, list[int]]:
        """For each kind of operation on which ranks differ, the ranks that have launched the fewest.

        They are the suspects: the others wait for them. RAS itself calls the minority outliers, which may as well be
        ranks that are ahead.
        """
        by_function: dict[str, list[RasCount]] = defaultdict(list)
        for count in self.counts:
            by_function[count.function].append(count)
        return {
            function: sorted(min(counts, key=lambda count: count.launched).ranks)
            for function, counts in by_function.items()
            if len(counts) > 1
        }


@dataclass(slots=True)
class RasStatus:
    """The state of the whole job, as one of its processes knew it."""

    nccl_version: str
    communicators: list[RasCommunicator] = field(default_factory=list)
    unresponsive: list[RasProcess] = field(default_factory=list)  # did not answer this time
    dead: list[RasProcess] = field(default_factory=list)  # RAS has given them up
    num_timeouts: int = 0  # while the answer was gathered: from one on, it may be incomplete


def query_ras(address: str | None = None, *, timeout: float = 15.0) -> RasStatus:
    """Ask a running NCCL job for its status.

    Args:
        address: "host:port" of a process of the job, "[host]:port" for IPv6; by default what the environment variable
            ``NCCL_RAS_ADDR`` says, else localhost:28028.
        timeout: seconds for the whole exchange. All but six of them, and at least one, are what NCCL waits for the
            job's other processes before it answers without them.

    Raises:
        ValueError: the address or the timeout makes no sense.
        OSError: no service listens there (the job has ended, runs elsewhere, or has ``NCCL_RAS_ENABLE=0``).
        TimeoutError: the answer was not complete in time.
        CorruptDataError: the answer is not that of NCCL's RAS service.
        UnsupportedVersionError: the job's NCCL is older than 2.28.7.
        LimitExceededError: the answer does not end within 256 MiB.

    May be called from any thread.
    """
    if not timeout > 0:
        raise ValueError(f"expected a timeout above 0, got {timeout}")
    host, port = _split(os.environ.get("NCCL_RAS_ADDR", _DEFAULT_ADDRESS) if address is None else address)
    deadline = time.monotonic() + timeout
    try:
        connection = socket.create_connection((host, port), timeout=timeout)
    except OSError as error:
        error.filename = f"{host}:{port}"
        error.strerror = (
            f"no RAS service of NCCL ({error.strerror or error}); it is there while a job of NCCL runs "
            "on that node, unless NCCL_RAS_ENABLE=0; name a node of the job as HOST:PORT"
        )
        raise
    with connection:
        lines = _Lines(connection, deadline)
        greeting = lines.ask(f"CLIENT PROTOCOL {_PROTOCOL}")
        if not greeting.upper().startswith("SERVER PROTOCOL "):
            raise _corrupt(f"a greeting SERVER PROTOCOL, got {greeting[:80]!r}")
        lines.ask(f"TIMEOUT {max(1, int(timeout) - _EXTRA_SECONDS)}")
        answer = lines.ask("SET FORMAT json")
        if answer != "OK":
            raise UnsupportedVersionError(
                f"expected NCCL's RAS service at {host}:{port} to answer in JSON, got {answer[:80]!r}",
                advice="use NCCL 2.28.7 or later, or run the job with the probe",
            )
        return parse_json(lines.ask_all("STATUS"))


def parse_json(answer: bytes) -> RasStatus:
    """The answer to STATUS in format json. Members that are unknown are ignored, those of a wrong type read as absent.

    Raises:
        CorruptDataError: it is no JSON object with a list of communicators.
    """
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise _corrupt(f"JSON, got {answer[:80]!r}") from error
    if not isinstance(document, dict) or not isinstance(document.get("communicators"), list):
        raise _corrupt("an object with a list of communicators")
    status = RasStatus(_text(document, "nccl_version"))
    status.num_timeouts = _number(_object(document, "ras"), "timeouts_count", 0)
    dead: dict[RasProcess | None, None] = {}  # sets that keep the order
    unresponsive: dict[RasProcess | None, None] = {}
    for entry in _objects(document, "communicators"):
        communicator = RasCommunicator(_hash(_text(entry, "hash")), _number(entry, "size", 0))
        by_count: dict[tuple[str, int], list[int]] = defaultdict(list)
        for member in _objects(entry, "ranks"):
            rank = _rank(member)
            rank.status = _status(_object(member, "status"))
            rank.error = _error(_object(member, "status"))
            communicator.ranks.append(rank)
            for function, launched in _object(member, "collective_counts").items():
                if type(launched) is int:
                    by_count[function, launched].append(rank.rank)
        communicator.counts = [RasCount(*key, ranks) for key, ranks in by_count.items()]
        for member in _objects(entry, "missing_ranks"):
            rank = _rank(member)
            fate = _object(member, "status")
            if fate.get("considered_dead") is True:
                dead[rank.process] = None
            elif fate.get("unresponsive") is True:
                unresponsive[rank.process] = None
            else:
                rank.status = "NOCOMM"
            communicator.missing.append(rank)
        status.communicators.append(communicator)
    status.dead, status.unresponsive = list(filter(None, dead)), list(filter(None, unresponsive))
    return status


class _Lines:
    """Lines over a connection, all before a deadline."""

    __reduce_ex__ = not_copied("a socket", "connect again")

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._received = bytearray()

    def ask(self, command: str) -> str:
        """Send a line, return the line that answers it."""
        self._send(command)
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > _MAX_LINE:
                raise _corrupt(f"a line, got {bytes(self._received[:80])!r}")
            if not self._receive():
                raise _corrupt(f"an answer to {command}, the connection ended")
        line = self._received[:end].decode("utf-8", "replace").rstrip("\r")
        del self._received[: end + 1]
        return line

    def ask_all(self, command: str) -> bytes:
        """Send a line, return all that comes before the connection ends."""
        self._send(command)
        while self._receive():
            if len(self._received) > _MAX_ANSWER:
                raise LimitExceededError(f"expected at most {_MAX_ANSWER} bytes from NCCL's RAS service, got more")
        return bytes(self._received)

    def _send(self, command: str) -> None:
        self._set_timeout()
        self._connection.sendall(command.encode() + b"\n")

    def _receive(self) -> bool:
        self._set_timeout()
        piece = self._connection.recv(1 << 16)
        self._received += piece
        return bool(piece)

    def _set_timeout(self) -> None:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("NCCL's RAS service did not answer in time")
        self._connection.settimeout(remaining)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"expected an address host:port, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _rank(member: dict[str, Any]) -> RasRank:
    pid = _number(member, "pid", -1)
    process = RasProcess(_text(member, "host"), pid) if pid >= 0 else None
    return RasRank(_number(member, "rank", -1), process, _number(member, "cuda_dev", -1))


def _status(status: dict[str, Any]) -> str:
    """As NCCL derives it for its text."""
    if status.get("abort_flag") is True:
        return "ABORT"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "FINALIZE"
    return "RUNNING" if status.get("init_state") == 0 else "INIT"


def _error(status: dict[str, Any]) -> str:
    for key in ("init_state", "async_error"):
        result = _number(status, key, 0)
        if result not in (0, _IN_PROGRESS):
            return _RESULTS.get(result, "Unexpected error")
    return ""


def _hash(digits: str) -> str:
    return digits.removeprefix("0x").rjust(16, "0")


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""


def _number(entry: dict[str, Any], key: str, absent: int) -> int:
    value = entry.get(key)
    return value if type(value) is int else absent


def _object(entry: dict[str, Any], key: str) -> dict[str, Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _objects(entry: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = entry.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _corrupt(expected: str) -> CorruptDataError:
    return CorruptDataError(f"expected {expected}", advice="is NCCL_RAS_ADDR the address of an NCCL job's RAS service?")
