"""Faults of which a fourth set was named wrongly, one or more for each cause. That set is not in the project.

They are known: the analyzer was mended with them. Each is judged as long as the job lives and once it is dead.
"""

from __future__ import annotations

from .training_job import WORLD_SIZE
from .variants import Variant

_RANKS = (0, 2)


def _nobody(_: int) -> list[int]:
    return []


def _all(_: int) -> list[int]:
    return list(range(WORLD_SIZE))


def _partner(rank: int) -> list[int]:
    """Both ranks of a tp group of the mesh."""
    return sorted((rank, rank ^ 1))


FOURTH = [
    Variant("interrupted-alone", "ended_by_others", "a rank alone gets SIGINT", ("TW-LOST",), ranks=_RANKS,
            before="nothing: 0 of 3"),
    Variant("hung-up-alone", "ended_by_others", "a rank alone gets SIGHUP", ("TW-LOST",), ranks=_RANKS,
            before="not run"),
    Variant("sigterms-apart", "ended_by_others", "R waits for a lock; a launcher's SIGTERMs come 0.5 s apart, then "
            "diagnose", ("TW-H1",), ranks=_RANKS, ending="SIGTERM", ending_seconds=15, ending_gap=0.5,
            before="LOST of an innocent rank"),
    Variant("sigints-apart", "ended_by_others", "the same with SIGINT", ("TW-H1",), ranks=_RANKS, ending="SIGINT",
            ending_seconds=15, ending_gap=0.5, before="not run"),
    Variant("expert-splits", "victims_of_gloo", "R's router has room for one expert's token more than it said: gloo "
            "aborts the ranks that it sends to", ("TW-H2",), ranks=_RANKS, before="LOST of a victim"),
    Variant("branch-with-collective", "victims_of_gloo", "DDP with find_unused_parameters: R leaves out a branch, in "
            "which the others reduce", ("TW-H2",), ranks=_RANKS, before="LOST of a victim"),
    Variant("clip-of-one", "victims_of_gloo", "2 x 2 mesh: R alone clips its gradient, by the norm over its tp group",
            ("TW-H2",), tie=_partner, ranks=_RANKS, before="LOST of a victim"),
    Variant("skipping-stage", "circles_of_messages", "a stage of a pipeline leaves out a step", ("TW-H2",),
            ranks=(1, 2), before="H2 of an innocent rank"),
    Variant("skipping-block", "circles_of_messages", "a rank of a ring does not take its turn in one step", ("TW-H2",),
            ranks=_RANKS, before="H2, all sides"),
    Variant("stopped-before-group", "unlike_when_dead", "R is stopped, and the others wait in new_group", ("TW-H1",),
            ranks=_RANKS, before="H1 R; of the dead job LOST R"),
    Variant("lock-of-files", "unlike_when_dead", "R waits for a lock file that a dead process left, and the others in "
            "all_reduce", ("TW-H1",), ranks=_RANKS, before="H1 R; of the dead job nothing"),
    Variant("background-save", "background_save", "R's storage hangs in an asynchronous checkpoint with a group of its "
            "own, and all train on", notice="checkpoint", ranks=_RANKS, before="H3, no rank"),
    Variant("store-gone", "all_secondary", "the process of the TCPStore is killed, and all ranks fail of it: no rank "
            "is to blame", ("TW-LOST", "TW-UNKNOWN"), suspects=_nobody, tie=_all,
            ranks=_RANKS, before="LOST of the first, high"),
    Variant("held-import", "held_import", "R imports torch.compile from storage that does not answer", ("TW-H1",),
            ranks=_RANKS, before="H1 R: is in torch.compile"),
]  # fmt: skip
