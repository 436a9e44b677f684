"""A fifth set of faults: fifteen jobs that hung, or lost a rank, after reports in public issue trackers.

They were written by somebody who had read neither the analyzer nor job/docs/method.md, and committed before anybody ran
one of them with its fault. Before that, each was run without it only (TW_FAULTS_RANK=-1), to see that it trains.
The docstring of each case in its program names the report. What is right was written with the program: the rank that
does another thing than its own program and the other ranks have it do, or two sides where no evidence tells them apart.
Where a rank goes on to wait in another place than the others' group, both classes of hangs are right.
"""

from __future__ import annotations

from .training_job import WORLD_SIZE
from .variants import Variant

_HANG = ("TW-H1", "TW-H2")


def _others(rank: int) -> list[int]:
    return [each for each in range(WORLD_SIZE) if each != rank]


def _stages(rank: int) -> list[int]:
    """The two stages that wait for each other."""
    return [rank - 1, rank]


def _partner(rank: int) -> list[int]:
    """Both ranks of a row of a 2 x 2 mesh."""
    return sorted((rank, rank ^ 1))


_CALLS = [
    Variant(
        "save-behind-guard",
        "reported_calls",
        "a rank saves a checkpoint behind a guard that lets it alone in, and the save ends in a barrier",
        ("TW-H2",),
        ranks=(0, 2),
    ),
    Variant(
        "own-capacity",
        "reported_calls",
        "a rank computes a higher capacity of the experts than the others, and sends more in all_to_all; gloo aborts",
        ("TW-H2",),
        ranks=(1, 3),
    ),
    Variant(
        "lacking-state",
        "reported_calls",
        "a rank has no state for an entry of the optimizer, and leaves out one of three all_gather_object",
        ("TW-H2",),
        ranks=(0, 3),
    ),
    Variant(
        "error-logged",
        "reported_calls",
        "a rank's evaluation fails; it logs the error and goes on to the next task, the others gather their answers",
        ("TW-H2",),
        ranks=(0, 2),
    ),
    Variant(
        "head-called-thrice",
        "reported_calls",
        "FSDP2: a rank calls the head three times in a step, and each call gathers parameters; the others call it once",
        ("TW-H2",),
        ranks=(1, 2),
    ),
]

_MESHES = [
    Variant(
        "long-warm-up",
        "reported_meshes",
        "a stage of a pipeline warms up for more micro-batches than there are, and waits for one more",
        ("TW-H2",),
        tie=_stages,
        ranks=(1, 2),
    ),
    Variant(
        "unsynced-replica",
        "reported_meshes",
        "two stages x 2 dp: a rank leaves out the reduction of its gradients from some step on, until all wait",
        _HANG,
        tie=_partner,
        ranks=(0, 3),
    ),
    Variant(
        "other-seed",
        "reported_meshes",
        "2 x 2 mesh: a rank's batch has another length than its partner's in the all_to_all of two; gloo aborts one",
        ("TW-H2",),
        tie=_partner,
        ranks=(1, 2),
    ),
    Variant(
        "killed-in-mesh",
        "reported_meshes",
        "2 x 2 mesh, groups of two only: the kernel kills a rank",
        ("TW-LOST",),
        ranks=(1, 3),
    ),
]

_WAITS = [
    Variant(
        "worker-not-asked",
        "reported_waits",
        "a rank generates on request; the three others train, and save with all ranks without a request to it",
        ("TW-H1",),
        ranks=(1, 3),
    ),
    Variant(
        "report-left-out",
        "reported_waits",
        "a rank leaves out a report, for which the others wait in a barrier of files, and goes on to train",
        _HANG,
        tie=_others,
        ranks=(0, 2),
    ),
    Variant(
        "parked",
        "reported_waits",
        "a rank alone gets SIGTERM, whose handler has it park between two steps",
        ("TW-H1",),
        ranks=(1, 3),
    ),
    Variant(
        "last-save",
        "reported_waits",
        "a rank waits for the process that writes its last checkpoint, whose storage does not answer",
        ("TW-H1",),
        ranks=(0, 2),
    ),
    Variant(
        "backtracking",
        "reported_waits",
        "a regular expression of a rank backtracks for ever, with Python's lock",
        ("TW-H1",),
        ranks=(1, 3),
    ),
    Variant(
        "truncated-dataset",
        "reported_waits",
        "a rank's mapped dataset is truncated, and it dies of SIGBUS",
        ("TW-LOST",),
        ranks=(0, 2),
    ),
]

UNSEEN_FIFTH: list[Variant] = [*_CALLS, *_MESHES, *_WAITS]
