"""A job that hangs, for the tests of what is shown of it: what is seen, what is found, what its analyzer leaves."""

from __future__ import annotations

from pathlib import Path

from job.tests.support.observations import member, observed, rank
from tensorwire_job.model import Confidence, Finding, Observation
from tensorwire_job.service.journal import Journal


def hang(world: int = 4, culprit: int = 2, *, seconds: int = 40, hung_after: int = 12) -> list[Observation]:
    """One observation a second: ten rounds in each until the culprit does not enter the next one."""
    observations = []
    for time in range(seconds):
        waits, ranks = float(time - hung_after), []
        for number in range(world):
            done, is_waiting = 10 * min(time, hung_after), waits > 0 and number != culprit
            group = member(done + is_waiting, waits=waits if is_waiting else None, group="default_pg", size=world)
            ranks.append(rank(number, group, world=world))
        observations.append(observed(1000.0 + time, ranks, world=world))
    return observations


def not_entered(world: int = 4, culprit: int = 2, *, time: float = 1025.0) -> Finding:
    return Finding(
        "TW-H1",
        "finding",
        time,
        [culprit],
        [],
        "default_pg",
        f"rank {culprit} has not entered all_reduce #121 of default_pg; {world - 1} ranks wait for it",
        [
            f"{world - 1} of {world} ranks wait in all_reduce #121, the longest for 13.0 s",
            f"rank {culprit} has completed #120 and entered nothing since",
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
