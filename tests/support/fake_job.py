"""Jobs that never ran: observations and findings for the tests of what is shown of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorwire.diagnosis.model import (
    Confidence,
    Finding,
    Observation,
    Operation,
    Process,
    ProcessGroup,
    Rank,
    Timing,
)
from tensorwire.diagnosis.service.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path


def process_group(completed: int, *, waits: float = 0.0, size: int = 4, late: float = 0.0) -> ProcessGroup:
    """A rank's view of the default group: it has completed so many operations, and waits in the next one."""
    is_open = waits > 0
    return ProcessGroup(
        id="c0",
        name="default_pg",
        size=size,
        enqueued=completed + is_open,
        completed=completed,
        open_seconds=waits or None,
        idle_seconds=waits or 0.1,
        operation=Operation(completed + is_open, "all_reduce", "BF16", 1 << 20),
        timing=Timing(1, 10, 10 * (0.2 - late), 0.1, 0.3, 1 << 24, 0) if late else None,
        baseline_rate=10.0,
    )


def rank(number: int, group: ProcessGroup, **process: object) -> Rank:
    state = Process(**{"life": "running", "state": "S", "cpu_seconds": 12.5, **process})
    return Rank(number, group.size, f"node{number // 8}", 1000 + number, 0, state, [group])


def hang(world: int = 4, culprit: int = 2, *, seconds: int = 40, hung_after: int = 12) -> list[Observation]:
    """One observation a second: ten rounds in each until the culprit does not enter the next one."""
    observations = []
    for time in range(seconds):
        waits = max(0.0, float(time - hung_after))
        ranks = {}
        for number in range(world):
            done = 10 * min(time, hung_after)
            waiting = waits if number != culprit else 0.0
            ranks[number] = rank(number, process_group(done, waits=waiting, size=world))
        observations.append(Observation(1000.0 + time, "a-run", world, ranks))
    return observations


def not_entered(world: int = 4, culprit: int = 2, *, time: float = 1025.0, sequence: int = 121) -> Finding:
    return Finding(
        "TW-H1",
        "finding",
        time,
        [culprit],
        [],
        "default_pg",
        f"rank {culprit} has not entered all_reduce #{sequence} of default_pg; {world - 1} ranks wait for it",
        [
            f"{world - 1} of {world} ranks wait in all_reduce #{sequence}, the longest for 13.0 s",
            f"rank {culprit} has completed #{sequence - 1} and entered nothing since",
        ],
        Confidence.HIGH,
        victims=world - 1,
        stacks={
            culprit: 'File "train.py", line 41, in load_batch\n    time.sleep(3600)\nFile "train.py", line 60, in main'
        },
    )


def write_state(directory: Path) -> None:
    """What an analyzer that has seen a job hang leaves in its directory."""
    journal = Journal(directory)
    journal.write(hang()[-1], [not_entered()])
    journal.close()
