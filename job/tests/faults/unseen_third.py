"""A third set of faults: after reports of jobs that hung, crawled or lost a rank, whose cause the thread found.

The reports are issues and pull requests of public repositories; the docstring of each case in its program names its
own. They were taken as a search gave them, but for those whose mechanism a set before has, and those that ranks on
CPUs, on one machine and on gloo, cannot show. What is right was written before they were run.
"""

from __future__ import annotations

from .variants import Variant


def _nobody(_: int) -> list[int]:
    return []


def _missing(_: int) -> list[int]:
    """The rank that nobody has started."""
    return [4]


_COLLECTIVES = [
    Variant(
        "overflow-of-one",
        "reported_collectives",
        "a rank's gradient scaler skips the step of a sharded optimizer, in which the others broadcast parameters",
        ("TW-H2",),
    ),
    Variant(
        "retried-batch",
        "reported_collectives",
        "a rank runs out of memory in a backward pass that is half reduced, and tries the batch again; gloo aborts",
        ("TW-H2",),
    ),
    Variant(
        "other-keys",
        "reported_collectives",
        "a rank logs a key more than the others, and each key is reduced behind a barrier",
        ("TW-H2",),
    ),
    Variant(
        "no-tokens",
        "reported_collectives",
        "a rank's expert gets no tokens, and its backward pass leaves out the all_to_all of the others",
        ("TW-H2",),
    ),
    Variant(
        "uncalled-norm",
        "reported_collectives",
        "a rank does not call a module that synchronizes batch normalization; gloo aborts",
        ("TW-H2",),
    ),
    Variant(
        "best-for-one",
        "reported_collectives",
        "the validation's loss is reduced to one rank, which alone sees the best, and saves; gloo aborts",
        ("TW-H2",),
    ),
    Variant(
        "early-last-token",
        "reported_collectives",
        "ranks generate with a sharded model; one has its last token sooner, and gathers the answers; gloo aborts",
        ("TW-H2",),
    ),
]

_STARTS = [
    Variant(
        "world-size",
        "reported_starts",
        "the world size is one more than the ranks that were started: none of them is to blame",
        ("TW-UNKNOWN", "TW-H1"),
        suspects=_nobody,
        tie=_missing,
        ranks=(0,),
        environment={"WORLD_SIZE": "5"},
    ),
    Variant(
        "local-rank",
        "reported_starts",
        "a rank joins by its number on its node, which another rank has as well, and nobody joins by its own",
        ("TW-UNKNOWN", "TW-H1", "TW-H2"),
        tie=_nobody,
    ),
    Variant(
        "stale-lock",
        "reported_starts",
        "all ranks wait for the lock file of an extension, whose builder was killed: no rank is to blame",
        ("TW-UNKNOWN",),
        suspects=_nobody,
        ranks=(0,),
    ),
    Variant(
        "resume-of-some",
        "reported_starts",
        "a rank finds no checkpoint and begins anew; the others load one that rank 0 broadcasts",
        ("TW-H2",),
    ),
    Variant(
        "logger-start",
        "reported_starts",
        "a rank's logger waits for its service, and the others wait in new_group",
        ("TW-H1",),
    ),
    Variant(
        "tokenize-first",
        "reported_starts",
        "a rank tokenizes the dataset in processes of its own, and the others wait in a barrier",
        ("TW-H1",),
    ),
]

_PROCESSES = [
    Variant(
        "loader-killed",
        "reported_processes",
        "the kernel kills a worker of a rank's data loader, which raises an error in the rank",
        ("TW-LOST",),
    ),
    Variant(
        "error-kept",
        "reported_processes",
        "each rank trains in a thread; one fails, and its error is kept while its process waits for requests",
        ("TW-LOST", "TW-H1"),
    ),
    Variant(
        "hung-up",
        "reported_processes",
        "the terminal of a job is closed, which all ranks ignore but one",
        ("TW-LOST",),
    ),
    Variant(
        "new-lengths",
        "reported_processes",
        "a rank's batches have a new length in each step, and each is compiled for anew",
        ("TW-S1",),
        seconds=40.0,  # a window, timed rounds and an answer, on a busy machine
    ),
]

UNSEEN_THIRD: list[Variant] = [*_COLLECTIVES, *_STARTS, *_PROCESSES]
