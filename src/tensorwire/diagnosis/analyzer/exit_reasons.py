"""When ranks were last heard of, what they said, and whether somebody ended them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model import REPLACED

if TYPE_CHECKING:
    from ..model import Rank

CLEAN = "exit 0"
LEFT = (CLEAN, REPLACED)  # exit reasons of those who left by themselves, at their end or too early
# Exit reasons of those who die because another did, or somebody ended them: lost connections, time-outs, signals.
_SECONDARY = (
    "connection", "closed by peer", "reset by peer", "broken pipe", "timed out", "timeout", "gloo", "nccl",
    "distbackenderror", "sigterm", "signal 15", "terminated", "keyboardinterrupt", "sigint", "sighup",
)  # fmt: skip
_INTERRUPTED = re.compile(r"keyboardinterrupt|\bsig(int|term|hup)\b|\bsignal (1|2|15)\b", re.IGNORECASE)
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)

# How jobs of four gloo ranks die of a signal: 32 jobs with torch 2.13 on two busy cores, 256 to 4 M elements, one or
# four threads, healthy and hung.
# - To all: it is noted by all within 5 ms (SIGTERM) and 36 ms (SIGINT). Of SIGTERM the processes are gone within 0.4 s.
#   Of SIGINT a rank that runs Python speaks within 36 ms, in a healthy job all ranks. Who waits in gloo speaks once a
#   peer has gone: after 0.5 to 5.3 s. The processes are gone after 1.1 to 6.7 s.
# - To one: its peers fail 14 to 52 ms later (SIGTERM), or 0.4 to 2.0 s later (SIGINT), the last of them after 4.3 s.
# A launcher sees that a process is gone, which takes 15 ms, when it looks next; torchrun looks ten times a second.
_PROMPT = 0.15
_AT_ONCE = 0.02
_TOGETHER = 2.0  # of Ctrl-C: whoever is killed with the one that speaks of it may have been heard of for the last time


def gone(rank: Rank) -> float:
    """Seconds since the last sign of life; 0 of one that lives."""
    return rank.process.gone_seconds or 0.0


def said(rank: Rank) -> float:
    """Seconds since the rank said what it ends of, or was last heard of."""
    return rank.process.exit_seconds if rank.process.exit_seconds is not None else gone(rank)


def is_secondary(rank: Rank) -> bool:
    exit_reason = rank.process.exit_reason.lower()
    return rank.process.exit_kind == "interruption" or any(word in exit_reason for word in _SECONDARY)


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


def reacted_at_once(rank: Rank) -> bool:
    """Whether a signal ended it as soon as it came: it ran Python then, and was in no wait inside the transport."""
    process = rank.process
    if process.exit_kind != "interruption" or process.signal_seconds is None or process.exit_seconds is None:
        return False
    return process.signal_seconds - process.exit_seconds < _PROMPT


def alike(ranks: Mapping[int, Rank]) -> list[int]:
    """The most of these that failed of the same, if that are two or more. Numbers in the words may differ."""
    by_words: dict[str, list[int]] = {}
    for number, rank in ranks.items():
        if has_failed(rank):
            by_words.setdefault(_NUMBERS.sub("0", rank.process.exit_reason), []).append(number)
    most = max(by_words.values(), key=len, default=[])
    return sorted(most) if len(most) > 1 else []


@dataclass(frozen=True, slots=True)
class Interruption:
    """Somebody ended the job: Ctrl-C, a closed terminal, the scheduler."""

    seconds: float  # ago
    how: str  # "KeyboardInterrupt", "SIGTERM"


def interruption(ranks: list[Rank], *, are_all: bool) -> Interruption | None:
    """Who was ended first, and how; None where nobody was, or one had failed or died before.

    Args:
        ranks: that are gone, have said something, or got a signal.
        are_all: no other rank is in view.
    """
    first = max((found for rank in ranks if (found := _interruption(rank)) is not None), default=None)
    if first is None:
        return None
    seconds, how = first
    if how == "SIGTERM" and not (are_all and _reached_all(ranks)):
        return None
    margin = 0.0 if how == "SIGTERM" else _TOGETHER  # launchers send it after a rank has failed
    for rank in ranks:
        if has_own_words(rank):
            if said(rank) > seconds:
                return None
        elif not rank.process.is_alive and _is_silent(rank) and gone(rank) > seconds + margin:
            return None
    return Interruption(seconds, how)


def _reached_all(ranks: list[Rank]) -> bool:
    """Whether SIGTERM ended all ranks and at once: where one got it alone, the others end because that one went."""
    times: dict[str, list[float]] = {}
    for rank in ranks:
        found = _interruption(rank)
        if found is not None:
            times.setdefault(rank.node, []).append(found[0])
        elif rank.process.is_alive or has_spoken(rank):
            return False
    on_node = sorted(max(times.values(), key=max), reverse=True)  # of one node, whose clock they are on
    return len(on_node) < 2 or on_node[0] - on_node[1] <= _AT_ONCE


def _is_silent(rank: Rank) -> bool:
    return not has_spoken(rank) and not rank.process.signal


def _interruption(rank: Rank) -> tuple[float, str] | None:
    process = rank.process
    if process.signal and process.signal_seconds is not None:
        return process.signal_seconds, process.signal
    if process.exit_kind == "interruption" or _INTERRUPTED.search(process.exit_reason):
        is_by_signal = "term" in process.exit_reason.lower() or "signal 15" in process.exit_reason.lower()
        return said(rank), "SIGTERM" if is_by_signal else process.exit_reason
    return None
