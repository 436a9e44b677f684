"""Faults thought of from the docs alone, each another mechanism than any in cases.py and known.py.

They were run before anyone tuned the analyzer to them: the results keep those first runs. What is right was written
before them, from job/docs/findings.md.
"""

from __future__ import annotations

from .training_job import WORLD_SIZE
from .variants import Variant

_SLOW_SECONDS = 40.0  # a window, timed rounds and an answer, on a busy machine


def _pair(rank: int) -> list[int]:
    return sorted((rank, (rank + 1) % WORLD_SIZE))


def _nobody(_: int) -> list[int]:
    return []


def _stages(rank: int) -> list[int]:
    """The two stages that wait for each other."""
    return [0, 1] if rank == 0 else [rank - 1, rank]


_STUCK_IN_PYTHON = [
    Variant(
        "store-key",
        "stuck_in_python",
        "a rank reads a key from the TCPStore that nobody ever sets",
        ("TW-H1",),
    ),
    Variant(
        "gil-in-network",
        "stuck_in_python",
        "an extension of a rank waits for the network and keeps Python's lock, without any use of CPU",
        ("TW-H1",),
    ),
    Variant(
        "rejection-loop",
        "stuck_in_python",
        "a rank samples until a condition holds that never does: busy, in Python, with torch operations",
        ("TW-H1",),
    ),
    Variant(
        "disk-full",
        "stuck_in_python",
        "a rank's disk is full, and it tries again every second for ever",
        ("TW-H1",),
    ),
    Variant(
        "signal-handler",
        "stuck_in_python",
        "a rank's handler of the scheduler's signal wants the lock that the code it interrupted holds",
        ("TW-H1",),
    ),
    Variant(
        "import-lock",
        "stuck_in_python",
        "a module that a rank imports waits for a thread that imports it",
        ("TW-H1",),
    ),
    Variant(
        "dead-thread",
        "stuck_in_python",
        "a rank's prefetching thread fails with a KeyError, and its main thread waits on for the next batch",
        ("TW-H1", "TW-LOST"),
    ),
    Variant(
        "hook-breakpoint",
        "stuck_in_python",
        "a breakpoint in a backward hook of a rank waits for somebody at a terminal",
        ("TW-H1",),
    ),
    Variant(
        "fork-lock",
        "stuck_in_python",
        "a rank waits for a child that was forked while another thread held the lock that the child wants",
        ("TW-H1",),
    ),
    Variant(
        "pool-worker",
        "stuck_in_python",
        "the worker of a rank's process pool is killed with a task, whose result the rank waits for",
        ("TW-H1",),
    ),
    Variant(
        "heals",
        "stuck_in_python",
        "a rank's storage answers after 8 s, and training goes on",
        ("TW-H1",),
    ),
    Variant(
        "two-faults",
        "stuck_in_python",
        "a rank waits for a lock and the next one for a server, in the same step",
        ("TW-H1",),
        suspects=_pair,
    ),
]

_HELD_BY_KERNEL = [
    Variant(
        "stopped-reader",
        "held_by_kernel",
        "a rank writes its log to a full pipe, whose reader somebody has stopped",
        ("TW-H1",),
    ),
    Variant(
        "spawn",
        "held_by_kernel",
        "a rank starts a program whose input cannot be opened: uninterruptible (state D), with Python's lock",
        ("TW-H1",),
    ),
    Variant(
        "debugger",
        "held_by_kernel",
        "a debugger attaches to a rank between two steps, and stays (state t)",
        ("TW-H1",),
    ),
    Variant(
        "frozen",
        "held_by_kernel",
        "the container of a rank is paused between two steps",
        ("TW-H1",),
        needs="freezer",
    ),
    Variant(
        "segfault",
        "held_by_kernel",
        "an extension of a rank reads from a null pointer, in a thread of its own",
        ("TW-LOST",),
    ),
]

_MISUSED_COLLECTIVES = [
    Variant(
        "some-gather",
        "misused_collectives",
        "three ranks call all_gather_object, and one goes on to the next step",
        ("TW-H2",),
    ),
    Variant(
        "destroyed-early",
        "misused_collectives",
        "a rank destroys its process group and uploads its logs; the others train on",
        ("TW-H1", "TW-H2"),
    ),
    Variant(
        "skipped-sync",
        "misused_collectives",
        "a rank skips a micro-batch: at the barrier of the epoch's end it is one synchronisation of DDP behind",
        ("TW-H2",),
    ),
    Variant(
        "unused-branch",
        "misused_collectives",
        "a batch leaves a branch of the model unused on a rank, whose next forward pass fails in DDP",
        ("TW-LOST",),
    ),
    Variant(
        "cleanup-barrier",
        "misused_collectives",
        "a rank fails, and waits in the barrier of its clean-up before the exception gets out",
        ("TW-H2",),
    ),
    Variant(
        "monitored-barrier",
        "misused_collectives",
        "three ranks wait in a monitored_barrier, and one waits for a server",
        ("TW-H1",),
    ),
]

_MISUSED_GROUPS = [
    Variant(
        "lock-order",
        "misused_groups",
        "a lock keeps the collectives of two threads apart: a rank's training gets it first, elsewhere the metrics do",
        ("TW-H2",),
    ),
    Variant(
        "members-only",
        "misused_groups",
        "a rank that is no member of a new group does not call new_group, in which the others wait for it",
        ("TW-H1", "TW-H2"),
        environment={"TORCH_DIST_INIT_BARRIER": "1"},
    ),
    Variant(
        "group-of-three",
        "misused_groups",
        "a rank waits for the lock of a file; two wait for it in a group of three, one in the world's",
        ("TW-H1",),
    ),
    Variant(
        "frozen-store",
        "misused_groups",
        "the process of the TCPStore is stopped, and all ranks wait for it in new_group: no rank is to blame",
        ("TW-UNKNOWN",),
        suspects=_nobody,
        ranks=(0,),
        seconds=25,
    ),
]

_MESSAGES = [
    Variant(
        "micro-batches",
        "misrouted_messages",
        "a stage of a pipeline has five micro-batches configured, and the others four",
        ("TW-H2",),
        tie=_stages,
    ),
    Variant(
        "wrong-neighbour",
        "misrouted_messages",
        "a rank of a ring sends its block to the rank after the next",
        ("TW-H2",),
    ),
]

_OTHER_PROGRAMS = [
    Variant(
        "whole-parameter",
        "sharded_training",
        "a rank gathers a whole parameter of FSDP2 for its log, and the others reduce the loss",
        ("TW-H2",),
    ),
    Variant(
        "missing-module",
        "fails_at_start",
        "a rank lacks a module and fails before init_process_group, in which the others wait",
        ("TW-LOST",),
    ),
]

_SLOWING_DOWN = [
    Variant(
        "synced-log",
        "slowing_down",
        "a rank writes a log in each step and waits for the disk after each line",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
    Variant(
        "growing-history",
        "slowing_down",
        "a rank keeps all it ever logged and sorts it in each step: slower with every step, without a jump",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
    Variant(
        "busy-threads",
        "slowing_down",
        "a rank shares Python's lock with two busy threads of its own",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
    Variant(
        "fresh-memory",
        "slowing_down",
        "a rank touches 256 MiB of fresh memory in each step: page faults",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
    Variant(
        "bursts",
        "slowing_down",
        "nine steps of a rank are fast, the tenth takes 1.5 s",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
]

_LESS_COMMON = [
    Variant(
        "short-timeout",
        "less_common",
        "a rank waits for a server, and the others give up after 4 s, before the hang gate",
        ("TW-H1",),
    ),
    Variant(
        "re-exec",
        "less_common",
        "a rank replaces its program by another: its process lives on, and its connections are gone",
        ("TW-LOST",),
    ),
    Variant(
        "missed-gather",
        "less_common",
        "a rank does not come to a gather: only the root waits there, the others in the next operation",
        ("TW-H1",),
    ),
    Variant(
        "partial-save",
        "less_common",
        "a rank leaves out a distributed checkpoint, and goes on to the next step",
        ("TW-H2",),
    ),
    Variant(
        "token-counts",
        "less_common",
        "a rank sends more tokens to the next one in all_to_all than it has announced, and gloo aborts that one",
        ("TW-H2",),
    ),
    Variant(
        "late-stage",
        "less_common",
        "a stage of a pipeline takes 0.1 s for a micro-batch, where it took 5 ms",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
    Variant(
        "late-root",
        "less_common",
        "the rank that broadcasts the batches is late by 0.2 s each time",
        ("TW-S1",),
        seconds=_SLOW_SECONDS,
    ),
    Variant(
        "two-late",
        "less_common",
        "two of four ranks are late by 0.2 s in each step",
        ("TW-S1",),
        suspects=_pair,
        seconds=_SLOW_SECONDS,
    ),
]

_LOOKS_SICK = [
    Variant(
        "varying-lengths",
        "less_common",
        "in every step another rank is late, now and then by ten times the mean",
        ranks=(0, 1),
        seconds=30,
    ),
    Variant(
        "longer-sequences",
        "looks_sick",
        "every step of every rank takes several times as long from some moment on",
        ranks=(0, 1),
        seconds=30,
    ),
    Variant(
        "leaves-by-agreement",
        "looks_sick",
        "a rank leaves as agreed, and the others go on as a job of three",
    ),
    Variant(
        "evaluation-apart",
        "looks_sick",
        "all ranks compute for 14 s without a collective, and one is 3 s late after it",
        seconds=25,
        notice="CPU",
    ),
    Variant(
        "long-steps",
        "looks_sick",
        "steps of 4 s, in which the ranks wait for something elsewhere",
        ranks=(0, 1),
        seconds=30,
    ),
]

UNSEEN: list[Variant] = [
    *_STUCK_IN_PYTHON,
    *_HELD_BY_KERNEL,
    *_MISUSED_COLLECTIVES,
    *_MISUSED_GROUPS,
    *_MESSAGES,
    *_OTHER_PROGRAMS,
    *_SLOWING_DOWN,
    *_LESS_COMMON,
    *_LOOKS_SICK,
]
