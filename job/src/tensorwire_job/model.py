"""Plain data: what the agents see and what the analyzer finds.

Times are seconds. The clocks of two nodes are never compared: an event on a node has an age, counted back from the
moment of its observation. Nothing here needs torch or NumPy; :func:`dataclasses.asdict` makes JSON of everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final, Literal, get_args

Life = Literal["running", "stopped", "exited", "lost"]
"""A process that runs, is stopped (state T), has said good-bye, or is gone without a word."""

LIVES: Final[tuple[Life, ...]] = get_args(Life)

ExitKind = Literal["", "end", "failure", "interruption", "crash"]
"""The last word of a process: none; that it ends; an uncaught exception; that it was told to end (Ctrl-C,
SIGINT, SIGTERM, SIGHUP); the signal of a crash."""

EXIT_KINDS: Final[tuple[ExitKind, ...]] = get_args(ExitKind)

Setup = Literal["", "before init", "in init", "initialized", "destroyed"]
"""Where a rank is with init_process_group; "" where that is not known."""

SETUPS: Final[tuple[Setup, ...]] = get_args(Setup)

FOR_ANY: Final = "recv from any source"
FOR_KEY: Final = "Store.wait"
NEW_GROUP: Final = "new_group"
MONITORED: Final = "monitored_barrier"
UNCOUNTED: Final = (NEW_GROUP, MONITORED, FOR_ANY, FOR_KEY)
"""Activities in which a rank waits for others, and which no group counts."""

FOR_LOCK: Final = "file lock"
"""The activity of a rank that waits for one whose holder is not known; :func:`in_lock_of` has the others."""

_HELD: Final = re.compile(rf"{FOR_LOCK} \(pid (\d{{1,7}})\)")

REPLACED: Final = "runs another program"
"""Exit reason of a process that has called exec: it lives, but is no rank any more."""

_WITHOUT_WORDS: Final = re.compile(r"\d+|[0-9a-f]{16,}")

MAX_RANKS: Final = 1 << 20
"""The most ranks of a job. Some data made of an observation have a place for each rank, seen or not."""


@dataclass(slots=True)
class Operation:
    """A collective, send or receive of one rank on one process group, as far as it is known."""

    sequence: int  # per process group, from 1
    name: str = ""  # "all_reduce", "broadcast", "send", ...: torch.distributed's; "" where only counts are known
    dtype: str = ""
    numel: int = -1  # of this rank's input; -1 unknown
    root: int = -1  # rooted operations: the root's rank within the group; send and recv: the peer's global rank
    signature: int = 0  # 64-bit hash of what has to agree between ranks; 0 unknown

    @property
    def is_pairwise(self) -> bool:
        """A message between two ranks: ranks of a group may differ in how many they sent and received."""
        return self.name in ("send", "recv")

    @property
    def known_root(self) -> int | None:
        """The root of a collective within its group, where one is known: the other end of a message is none."""
        return None if self.is_pairwise or self.root < 0 else self.root


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a rank's history, which has its last calls over all process groups in the order that it made them."""

    group: str  # ProcessGroup.id; of a message that of its pair
    operation: Operation  # send and recv: numbered for themselves; recv from any source: root -1
    line: int = 0  # 32-bit hash of the line of the script that called it, 0 unknown; and IN_THREAD where that is so
    counts: tuple[int, ...] = ()  # all_to_all: elements for each member, then from each, in the group's order


IN_THREAD: Final = 1 << 32
"""The bit of a line that says that another thread of Python's than the main one made the call."""

MAX_CALLS: Final = 96
"""The most calls of a history."""

MAX_COUNTS: Final = 256
"""The most counts of a call that are kept: those of 128 members."""


@dataclass(slots=True)
class Timing:
    """T of one rank, summed over the rounds that all ranks timed.

    T is completion minus the later of enqueue and the previous operation's completion on that process group. For
    messages that the probe counts, T is the time waited for them, summed over all so far, and the least and the
    greatest are 0.
    """

    first_sequence: int
    num_rounds: int
    sum_seconds: float
    min_seconds: float
    max_seconds: float
    num_bytes: int  # moved by the operations, as this rank's inputs count them
    rooted_or_pairwise: int  # rounds for which P means nothing: rooted, send/recv, barriers


def group_title(name: str) -> str:
    """A name for a sentence: torch calls groups without a description by a number or a hash, "2" is "group 2" then."""
    return f"group {name}" if _WITHOUT_WORDS.fullmatch(name) else name


@dataclass(slots=True)
class ProcessGroup:
    """One rank's view of one process group."""

    id: str  # 16 digits, the same on all its ranks, and on no other group of the job; 8 are those of torch's name of it
    name: str  # torch's description of the group, "default_pg"
    size: int  # ranks in the group
    enqueued: int  # operations that the rank has called so far
    completed: int
    open_seconds: float | None  # age of the oldest operation that is not complete
    idle_seconds: float | None  # since the last completion
    operation: Operation | None  # the oldest open one, else the last
    timing: Timing | None = None
    sent_bytes: int = -1  # progress of the transport, where it tells (NCCL's proxies); -1 unknown
    received_bytes: int = -1
    baseline_rate: float | None = None  # operations per second in this rank's good times; None while unknown
    members: Sequence[int] = ()  # global ranks, in the order of their rank in the group; () unknown

    @property
    def title(self) -> str:
        """The name that a person knows it by."""
        return group_title(self.name or self.id)

    @property
    def is_pairwise(self) -> bool:
        """Its operation is a message between two ranks."""
        return self.operation is not None and self.operation.is_pairwise

    @property
    def open_sequence(self) -> int:
        """Sequence number of the oldest open operation, where one is open."""
        operation = self.operation
        return operation.sequence if operation is not None and operation.sequence > 0 else self.completed + 1

    def has_entered(self, sequence: int) -> bool:
        """Whether the rank has called the operation of this number. Messages are counted apart at their two ends."""
        return self.enqueued >= sequence


def in_lock_of(pid: int) -> str:
    """The activity of a rank that waits for the file lock of this process."""
    return f"{FOR_LOCK} (pid {pid})"


def holder_of_lock(activity: str) -> int | None:
    """The pid of the process that holds the file lock that a rank waits for; None where it waits for none, 0 where the
    holder is not known."""
    found = _HELD.fullmatch(activity)
    return int(found[1]) if found else 0 if activity == FOR_LOCK else None


@dataclass(slots=True)
class Worker:
    """A child of a rank's process, such as a worker of its data loader."""

    pid: int
    name: str
    state: str
    wait_channel: str = ""  # the kernel's function that it sleeps in
    cpu_seconds: float = 0.0


@dataclass(slots=True)
class Process:
    """A rank's process, as the operating system describes it. Counters grow from the start of the process."""

    life: Life
    state: str = "?"  # of /proc/PID/stat: R, S, D, T, Z
    cpu_seconds: float = 0.0
    wait_seconds: float = 0.0  # runnable, but not running (schedstat)
    num_throttled: int = 0  # of its cgroup
    throttled_seconds: float = 0.0
    exit_reason: str = ""  # "exit 1", "ValueError: ...", where the process could still say so
    gone_seconds: float | None = None  # since its last sign of life, once it has exited or is lost
    exit_kind: ExitKind = ""
    exit_seconds: float | None = None  # age of exit_reason: of a process that lives on, too
    signal: str = ""  # the last SIGINT, SIGTERM or SIGHUP, of several within 10 s the first, ended by it or not
    signal_seconds: float | None = None  # since then
    written_bytes: int = -1  # by calls that write, those to sockets included; -1 unknown
    read_bytes: int = -1
    workers: list[Worker] = field(default_factory=list)  # looked at while the rank completes nothing

    @property
    def is_alive(self) -> bool:
        return self.life in ("running", "stopped")

    @property
    def is_stopped(self) -> bool:
        return self.life == "stopped"


@dataclass(slots=True)
class Rank:
    rank: int
    world_size: int
    node: str
    pid: int
    generation: int  # restart count of the elastic launcher
    process: Process
    process_groups: list[ProcessGroup]
    heartbeat_seconds: float = 0.0  # age of the counts; they stand still in a process that is stopped or holds the GIL
    timed: bool = False  # every operation is timed
    phase: str = ""  # what the script declared it is doing: "checkpoint", "evaluation"
    overflow: bool = False  # more process groups than the page has room for
    setup: Setup = ""
    setup_seconds: float | None = None  # since it is there
    activity: str = ""  # what its main thread is in, by its stack: "torch.save", "torch.compile", "DataLoader", ...
    activity_seconds: float | None = None
    calls: Sequence[Call] = ()  # the last ones, the newest last, as they were read once it stood still or was to end
    calls_seconds: float | None = None  # since they were read

    @property
    def is_waiting(self) -> bool:
        """Whether its stack shows that it waits for others."""
        return self.activity in UNCOUNTED

    @property
    def longest_open(self) -> ProcessGroup | None:
        """The group whose operation has been open for the longest."""
        opened = sorted((g for g in self.process_groups if g.open_seconds is not None), key=lambda group: group.id)
        return max(opened, key=lambda group: group.open_seconds or 0.0, default=None)


@dataclass(slots=True)
class Edge:
    """One TCP connection from one rank's end. Counters grow from its start."""

    rank: int
    peer: int  # -1: not one of the job's ranks
    acked_bytes: int
    received_bytes: int
    busy_seconds: float  # with data in flight or waiting to be sent
    receive_queue: int  # bytes that the process has not read
    send_queue: int  # bytes that the peer has not acknowledged
    backoff: int  # doublings of the retransmission timer at present
    retransmits: int
    rtt_seconds: float
    # address:port of either end; together they name the connection. Where an address means nothing elsewhere
    # (loopback), the network namespace stands before it.
    local: str = ""
    remote: str = ""


@dataclass(slots=True)
class Observation:
    """All that is known of a job at one time, on the analyzer's own clock, which never goes back.

    The parts are snapshots: what changes is replaced, not written to, since the analyzer keeps some for a while. A rank
    whose agent is silent keeps its last entry, ages included, so that nothing grows old for want of news.
    """

    time: float
    run_id: str
    world_size: int
    ranks: Mapping[int, Rank]
    edges: Sequence[Edge] = ()
    silent_nodes: list[str] = field(default_factory=list)  # agents not heard of for several intervals


Code = Literal["TW-H1", "TW-H2", "TW-H3", "TW-S1", "TW-S2", "TW-S3", "TW-LOST", "TW-UNKNOWN"]
Level = Literal["finding", "notice"]


class Confidence(str, Enum):
    """How far a finding can be trusted, the most first. job/docs/findings.md has the rules, and how many were right."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    def __str__(self) -> str:
        return self.value

    @property
    def order(self) -> int:
        """0 for the highest. The members themselves compare as strings."""
        return list(Confidence).index(self)


MAX_SUSPECTS: Final = 5
"""The first few suspects are named."""


@dataclass(frozen=True, slots=True)
class CircleRank:
    """A rank of a circle, which waits for the next one."""

    rank: int
    waits_in: str  # "recv from rank 3 of pp"


@dataclass(slots=True)
class Finding:
    """A verdict. A notice is worth knowing although nothing is wrong (a declared checkpoint)."""

    code: Code
    level: Level
    time: float
    suspects: list[int]  # global ranks, the most suspect first; at most a handful
    sides: list[list[int]]  # where the culprit is not known: the groups that disagree
    process_group: str
    summary: str  # one sentence that names ranks, operation and group
    evidence: list[str]  # each a measured fact
    confidence: Confidence
    victims: int = 0  # ranks that wait
    stacks: dict[int, str] = field(default_factory=dict)  # by rank: its stack, or why there is none
    since: float | None = None  # when the trouble began, on the clock of `time`; None where that is not known
    ended: list[int] = field(default_factory=list)  # of the suspects, those whose process is gone
    circle: list[CircleRank] = field(default_factory=list)  # ranks that wait for each other, the last one for the first

    def identity(self) -> tuple[object, ...]:
        """A key that is the same whenever the same finding is told."""
        return self.code, self.level, self.process_group, *self.suspects


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When something counts as trouble. job/docs/setup.md gives the reasons for the defaults."""

    hang_seconds: float = 300.0
    slow_seconds: float = 60.0  # how long slowness has to last, and the window of the rolling baseline's samples
    slow_factor: float = 3.0  # slow: the time per operation exceeds the baseline by this factor
    compute_share: float = 0.7  # P from here on: S1
    transfer_share: float = 0.3  # P up to here: S2
    lost_seconds: float = 10.0  # a rank without a sign of life

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not value > 0:  # nor is a NaN
                raise ValueError(f"expected {each.name} above 0, got {value}")
        if self.transfer_share >= self.compute_share:
            raise ValueError(
                f"expected transfer_share below compute_share, got {self.transfer_share} and {self.compute_share}"
            )


ASKED: Final = Thresholds(hang_seconds=30.0, slow_seconds=10.0)
"""Thresholds for a person who asks because of suspected trouble. A command that speaks up by itself waits longer."""

ASKED_SECONDS: Final = 20.0
"""How long such a person waits. Slowness shows after the window, three seconds until all ranks begin to time
operations, and a dozen operations. If each takes up to 0.4 s, that is enough."""
