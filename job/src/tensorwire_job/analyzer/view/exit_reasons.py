"""When ranks were last heard of, what they said, and whether they were told to end.

A signal that is caught is no end: the job goes on after it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ... import words
from ...model import REPLACED

if TYPE_CHECKING:
    from ...model import Rank
    from .job import Job

LEFT = ("exit 0", REPLACED)  # exit reasons of those who left by themselves, at their end or too early
# Exit reasons of ranks that die because another did, or were told to end: lost connections, time-outs, signals.
_OF_TRANSPORT = ("gloo", "nccl", "distbackenderror")
_SECONDARY = (
    "connection", "closed by peer", "reset by peer", "broken pipe", "timed out", "timeout", *_OF_TRANSPORT,
    "monitoredbarrier", "sigterm", "signal 15", "terminated", "keyboardinterrupt", "sigint", "sighup",
)  # fmt: skip
_INTERRUPTED = re.compile(r"keyboardinterrupt|\bsig(int|term|hup)\b|\bsignal (1|2|15)\b", re.IGNORECASE)
# A check has failed, perhaps of what another rank has sent.
_COMPARED = re.compile(r"^assert|\bexpect|\bgot\b(?! an unexp)|mismatch|\bdiffer|\bmatch|\bequal|inconsistent", re.I)
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)
TOGETHER = 10.0  # in which a signal reaches all ranks, if one after the other; what comes later is another one
SAME_SECONDS = 1.0  # times that are known to a poll
_GRACE = 40.0  # torchrun, Slurm and Kubernetes kill what is left 30 s after they have asked it to end
_MOMENT = 0.02  # to which two times of one page are known


def gone(rank: Rank) -> float:
    """Seconds since the last sign of life; 0 of one that lives. One that noted a signal lived then, even if it had said
    otherwise before."""
    process = rank.process
    seconds = process.gone_seconds or 0.0
    return seconds if process.signal_seconds is None else min(seconds, process.signal_seconds)


def said(rank: Rank) -> float:
    """Seconds since the rank said what it ends of, or was last heard of."""
    return rank.process.exit_seconds if rank.process.exit_seconds is not None else gone(rank)


def stands_still(rank: Rank, seconds: float) -> bool:
    """Whether it has completed nothing since so many seconds ago."""
    return all(g.idle_seconds is None or g.idle_seconds >= seconds for g in rank.process_groups)


def is_secondary(rank: Rank) -> bool:
    exit_reason = rank.process.exit_reason.lower()
    return rank.process.exit_kind == "interruption" or any(word in exit_reason for word in _SECONDARY)


def was_in_init(rank: Rank) -> bool:
    """Whether it was in init_process_group when it was last heard of. Pages lack what fails at once in it."""
    reason = rank.process.exit_reason.lower()
    return rank.setup == "in init" or (rank.setup == "before init" and any(word in reason for word in _OF_TRANSPORT))


def ran_out_of_time(rank: Rank) -> bool:
    exit_reason = rank.process.exit_reason.lower()
    return "timed out" in exit_reason or "timeout" in exit_reason


def has_spoken(rank: Rank) -> bool:
    """Whether it told of its end. A crash is not that: transports abort ranks that do no wrong."""
    return bool(rank.process.exit_reason) and rank.process.exit_kind != "crash"


def has_own_words(rank: Rank) -> bool:
    """Whether it failed, and said of what, and not that another had."""
    return has_spoken(rank) and rank.process.exit_reason not in LEFT and not is_secondary(rank)


def has_failed(rank: Rank) -> bool:
    """Whether its own error ended what it was there for. "exit" is what a process says that ends well or not."""
    return has_own_words(rank) and rank.process.exit_kind != "end" and not rank.process.exit_reason.startswith("exit")


def has_compared(rank: Rank) -> bool:
    """Whether its own error is that two values differ: either may be of another rank."""
    return has_failed(rank) and bool(_COMPARED.search(rank.process.exit_reason))


def alike(ranks: Mapping[int, Rank]) -> list[int]:
    """The most of these that failed of the same, if that are two or more. Numbers in the words may differ."""
    by_words: dict[str, list[int]] = {}
    for number, rank in ranks.items():
        if has_failed(rank):
            by_words.setdefault(_NUMBERS.sub("0", rank.process.exit_reason), []).append(number)
    most = max(by_words.values(), key=len, default=[])
    return sorted(most) if len(most) > 1 else []


def blamed(ranks: Mapping[int, Rank], world_size: int) -> tuple[list[list[int]], set[int]]:
    """Whom the words of those that failed name beside themselves: one list is a suspect, two are sides, none leaves it
    open; and the ranks that speak so.

    A rank that fails as well is named rightly by most of the others that fail. One that does not may be what the
    others are compared with: then it is the odd one if most ranks name it, and they are if they are few.
    """
    speak = {number: words.ranks_named(rank.process.exit_reason) for number, rank in ranks.items() if has_failed(rank)}
    by_named: dict[int, list[int]] = {}
    for number in sorted(speak):
        others = {other for other in speak[number] if other < world_size} - {number}
        if len(others) == 1:  # of several, none is singled out, or they are numbers of a group
            by_named.setdefault(others.pop(), []).append(number)
    most = max(map(len, by_named.values()), default=0)
    tied = [named for named, by in by_named.items() if len(by) == most]
    speakers = {number for by in by_named.values() for number in by}
    if len(tied) > 1:
        sides = [by_named[named] for named in tied]
        return (sides if 2 * sum(map(len, sides)) > len(speak) else []), speakers
    of = len(speak.keys() - set(tied)) if set(tied) <= speak.keys() else world_size
    if 2 * most > of:
        return [tied], speakers
    namers = by_named[tied[0]] if tied else []
    others_side = [number for number in range(world_size) if number not in namers]
    return ([namers, others_side] if 2 * most == of == world_size else []), speakers


def was_interrupted(rank: Rank) -> bool:
    """Whether it says that it was told to end."""
    return rank.process.exit_kind == "interruption" or bool(_INTERRUPTED.search(rank.process.exit_reason))


def may_end(job: Job) -> bool:
    """Whether a signal has come that may be about to end a job of which all ranks live."""
    young = {number: age for number, age in job.columns.signals.items() if age <= _GRACE}
    return bool(young) and not goes_on(job, young)


def goes_on(job: Job, asked: dict[int, float], end: float = 0.0) -> bool:
    """Whether a rank has entered an operation after the signal that it got so long ago, or any has completed one a poll
    after the first signal, before the first end: who waits does not react."""
    columns, rows = job.columns, job.columns.rows
    if not asked:
        return False
    own = np.zeros(len(columns))
    own[[columns.place_of[number] for number in asked]] = list(asked.values())
    entered = (rows.open_seconds >= end) & (rows.open_seconds < own[rows.places] - _MOMENT)
    completed = (rows.idle_seconds >= end) & (rows.idle_seconds < max(asked.values()) - SAME_SECONDS)
    return bool((entered | completed).any())


def without_outlived(job: Job, dead: dict[int, Rank], end: float) -> Job:
    """The job with those signals alone of which ranks may have ended, or may yet end. `end` is the age of the first
    end; a rank that a second signal ended had outlived its first one."""
    signals = job.columns.signals
    outlived = {number for number, age in signals.items() if number in dead and _is_outlived(dead[number], age, end)}
    latest = end + (TOGETHER if outlived else _GRACE)
    return without(job, outlived | {number for number, age in signals.items() if age > latest})


def without(job: Job, numbers: Collection[int]) -> Job:
    """The job, as if these ranks had got no signal."""
    return replace(job, ranks=job.columns.without_signals(numbers)) if numbers else job


def _is_outlived(rank: Rank, age: float, end: float) -> bool:
    ended = rank.process.exit_seconds
    if rank.process.exit_kind != "interruption" or ended is None:
        return False
    idle = (group.idle_seconds for group in rank.process_groups)
    return age - ended > TOGETHER > end - ended or any(
        ago is not None and end <= ago < age - SAME_SECONDS for ago in idle
    )
