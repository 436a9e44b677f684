"""When dead ranks were last heard of, and what they said."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model import Rank

CLEAN = "exit 0"
# Exit reasons of those who die because another did: lost connections, time-outs, and the launcher's SIGTERM.
_SECONDARY = (
    "connection", "closed by peer", "reset by peer", "broken pipe", "timed out", "timeout", "gloo", "nccl",
    "distbackenderror", "sigterm", "signal 15", "terminated",
)  # fmt: skip


def gone(rank: Rank) -> float:
    """Seconds since the last sign of life; 0 of one that lives."""
    return rank.process.gone_seconds or 0.0


def is_secondary(rank: Rank) -> bool:
    exit_reason = rank.process.exit_reason.lower()
    return any(word in exit_reason for word in _SECONDARY)


def ran_out_of_time(rank: Rank) -> bool:
    exit_reason = rank.process.exit_reason.lower()
    return "timed out" in exit_reason or "timeout" in exit_reason


def has_own_words(rank: Rank) -> bool:
    """Whether it failed, and said of what, and not that another had."""
    exit_reason = rank.process.exit_reason
    return exit_reason not in ("", CLEAN) and not is_secondary(rank)
