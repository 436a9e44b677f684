"""The command that a person types next, by what was found and where the suspect is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.hung_job import hang, not_entered
from tensorwire_job.report import History
from tensorwire_job.report.next_command import next_command

if TYPE_CHECKING:
    from tensorwire_job.model import Life

REPORT = "tensorwire-job report --dir 'a job'"
PID = hang()[-1].ranks[2].pid


def asked(
    life: Life = "running", exit_reason: str = "", nodes: int = 1, *, recorded: bool = False, **change: Any
) -> str:
    """What is said of a finding on rank 2, whose process is in this state."""
    observation = hang()[-1]
    for rank in observation.ranks.values():
        rank.node = f"node{rank.rank % nodes}"
    process = observation.ranks[2].process
    process.life, process.exit_reason = life, exit_reason
    history = History(recorded=recorded)
    finding = replace(not_entered(), **change)
    history.add(observation, [finding])
    return next_command(finding, history, ["--dir", "a job"])


@pytest.mark.parametrize(
    ("code", "command"),
    [
        ("TW-H1", f"py-spy dump --locals --pid {PID}    (pip install py-spy)"),
        ("TW-H3", f"py-spy dump --locals --pid {PID}    (pip install py-spy)"),
        ("TW-S1", f"py-spy record --duration 30 --pid {PID} --output rank2.svg    (pip install py-spy)"),
        ("TW-S2", f"ss -tinp | grep -A 1 pid={PID},"),
        ("TW-LOST", "sudo dmesg -T | grep -i 'killed process'"),
    ],
)
def test_a_look_at_the_suspect(code: str, command: str) -> None:
    assert asked(code=code) == command
    assert asked(code=code, nodes=3) == f"on node2: {command}"


def test_a_rank_that_said_why_it_ended_needs_no_kernel_log() -> None:
    assert asked("exited", "ValueError: no such file", code="TW-LOST") == REPORT
    assert "dmesg" in asked("lost", "killed by SIGKILL", code="TW-LOST")
    assert asked("lost", "killed by SIGSEGV", code="TW-LOST") == REPORT


def test_without_a_rank_to_look_at_the_report_tells_most() -> None:
    assert asked("lost") == REPORT
    assert asked(suspects=[], sides=[[0], [1]]) == REPORT
    assert asked(suspects=[77]) == REPORT


def test_notices_and_recordings_ask_for_nothing() -> None:
    assert asked(level="notice") == asked(recorded=True) == ""
