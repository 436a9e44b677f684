"""A second set of faults thought of from the docs alone, each another mechanism than any in the sets before.

As with the first set, what is right was written before they were run, and the results keep the first runs.
"""

from __future__ import annotations

from .training_job import WORLD_SIZE
from .variants import Variant

_SLOW_SECONDS = 40.0  # a window, timed rounds and an answer, on a busy machine


def _nobody(_: int) -> list[int]:
    return []


def _all(_: int) -> list[int]:
    return list(range(WORLD_SIZE))


def _others(rank: int) -> list[int]:
    return [each for each in range(WORLD_SIZE) if each != rank]


def _with_next(rank: int) -> list[int]:
    return sorted((rank, (rank + 1) % WORLD_SIZE))


def _dp_group(rank: int) -> list[int]:
    """The ranks of a dp group in a 2 x 2 mesh of dp and tp."""
    return sorted((rank, rank ^ 2))


_MISUSED_WRAPPERS = [
    Variant(
        "validation-of-one",
        "misused_wrappers",
        "a rank validates with the model in DDP, which broadcasts its buffers; the others wait in a barrier",
        ("TW-H2",),
    ),
    Variant(
        "zero-consolidate",
        "misused_wrappers",
        "a rank alone consolidates the state of a ZeroRedundancyOptimizer",
        ("TW-H2",),
    ),
    Variant(
        "fsdp-no-sync",
        "misused_wrappers",
        "FSDP2: a rank accumulates the gradients of one micro-batch more, and does not reduce them",
        ("TW-H2",),
    ),
    Variant(
        "wrong-mesh-axis",
        "misused_wrappers",
        "2 x 2 mesh: a rank redistributes a DTensor along dp in place of tp",
        ("TW-H2",),
        tie=_dp_group,
    ),
    Variant(
        "join-of-some",
        "misused_wrappers",
        "a rank trains without the join() of DDP, which the others use",
        ("TW-H2",),
    ),
]

_OTHER_WAITS = [
    Variant(
        "thread-order",
        "other_waits",
        "two threads of each rank use one group without a lock; a rank's training is first once, elsewhere the metrics",
        ("TW-H2",),
    ),
    Variant(
        "unset-key",
        "other_waits",
        "a rank does not set a key of the store that the others wait for, and goes on to the next step",
        ("TW-H1", "TW-H2"),
        tie=_others,
    ),
    Variant(
        "rpc-no-answer",
        "other_waits",
        "a rank waits for the answer of an RPC that does not come",
        ("TW-H1",),
        environment={"TP_SOCKET_IFNAME": "lo"},
    ),
    Variant(
        "any-source",
        "other_waits",
        "a rank does not report to a collector, which receives from any source",
        ("TW-H1",),
        tie=_with_next,
    ),
    Variant(
        "wrong-tag",
        "other_waits",
        "a rank of a ring sends with another tag than the next one expects",
        ("TW-H2",),
        tie=_with_next,
    ),
    Variant(
        "ring-of-sends",
        "other_waits",
        "all ranks of a ring send before they receive: no rank is to blame",
        ("TW-H2",),
        suspects=_nobody,
        ranks=(0,),
    ),
    Variant(
        "storage-of-all",
        "other_waits",
        "all ranks wait for storage that answers nothing: no rank is to blame",
        ("TW-UNKNOWN",),
        suspects=_nobody,
        ranks=(0,),
    ),
    Variant(
        "all-stopped",
        "other_waits",
        "somebody stops all ranks, as Ctrl-Z does",
        ("TW-H1", "TW-H3"),
        suspects=_all,
        tie=_nobody,
        ranks=(0,),
    ),
]

_ENDING_OTHERWISE = [
    Variant(
        "ended-with-thread",
        "ending_otherwise",
        "a rank's script ends in the middle, and a thread keeps its process alive",
        ("TW-LOST", "TW-H1"),
    ),
    Variant(
        "cpu-limit",
        "ending_otherwise",
        "a rank reaches its limit of CPU time, and the kernel kills it (SIGXCPU)",
        ("TW-LOST",),
    ),
    Variant(
        "deep-recursion",
        "ending_otherwise",
        "a rank overflows its stack",
        ("TW-LOST",),
    ),
    Variant(
        "closed-descriptors",
        "ending_otherwise",
        "a rank closes all its descriptors, those of its connections too",
        ("TW-LOST",),
    ),
    Variant(
        "preempted",
        "ending_otherwise",
        "a rank alone gets SIGTERM; its handler saves, and leaves with exit code 0",
        ("TW-LOST",),
    ),
]

_SLOWER_RANKS = [
    Variant(
        "slow-in-mesh",
        "slower_ranks",
        "2 x 2 mesh, groups of two only: each layer of a rank takes 0.1 s longer",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
    Variant(
        "slow-ring",
        "slower_ranks",
        "blocks go round a ring, and a rank takes 0.1 s longer for each; a collective ends the step",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
    Variant(
        "anomaly-mode",
        "slower_ranks",
        "a rank trains with anomaly detection, and statistics of each gradient",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
    Variant(
        "slow-reader",
        "slower_ranks",
        "a rank writes its log to a pipe that is read slowly",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
]

_WAITS_ON_PURPOSE = [
    Variant(
        "early-vote",
        "waits_on_purpose",
        "a rank enters an asynchronous collective 9 s before the others; nobody waits for it, and all train on",
        seconds=25,
    ),
    Variant(
        "waiting-evaluator",
        "waits_on_purpose",
        "three ranks train in a group of their own; the fourth waits 9 s for each of their broadcasts",
        seconds=30,
    ),
    Variant(
        "joined",
        "waits_on_purpose",
        "a rank is through with its batches, under join(), and the others train on",
        seconds=25,
    ),
]

UNSEEN_SECOND: list[Variant] = [
    *_MISUSED_WRAPPERS,
    *_OTHER_WAITS,
    *_ENDING_OTHERWISE,
    *_SLOWER_RANKS,
    *_WAITS_ON_PURPOSE,
]
