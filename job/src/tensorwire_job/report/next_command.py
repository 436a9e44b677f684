"""The one command that a person types next, once a finding has been read."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..model import Finding, Rank
    from .history import History

_SLOW: Final = ("TW-S1", "TW-S3")
_PY_SPY: Final = "    (pip install py-spy)"


def next_command(finding: Finding, history: History, source: list[str]) -> str:
    """A command line, with the pid of the first suspect where that rank lives; "" where there is nothing to look at.

    Args:
        source: the options by which `tensorwire-job report` finds the job.
    """
    last = history.last
    suspect = last.ranks.get(finding.suspects[0]) if last and finding.suspects else None
    if history.recorded or finding.level != "finding":
        return ""
    if suspect is not None and suspect.process.is_alive and finding.code != "TW-LOST":
        return _on_node(_look_at(finding, suspect), suspect, history)
    if suspect is not None and finding.code == "TW-LOST" and suspect.process.exit_reason in ("", "killed by SIGKILL"):
        return _on_node("sudo dmesg -T | grep -i 'killed process'", suspect, history)
    return shlex.join(["tensorwire-job", "report", *source])


def _look_at(finding: Finding, suspect: Rank) -> str:
    """At what the rank does now, in more detail than the finding has it."""
    if finding.code in _SLOW:
        return f"py-spy record --duration 30 --pid {suspect.pid} --output rank{suspect.rank}.svg{_PY_SPY}"
    if finding.code == "TW-S2":
        return f"ss -tinp | grep -A 1 pid={suspect.pid},"
    return f"py-spy dump --locals --pid {suspect.pid}{_PY_SPY}"


def _on_node(command: str, suspect: Rank, history: History) -> str:
    are_several = len(set(history.ranks.places.nodes.tolist())) > 1
    return f"on {suspect.node}: {command}" if are_several else command
