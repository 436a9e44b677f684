"""Ranks that called one operation with other types than the rest, which the transport let pass: the job runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..view.confidence import Basis
from .unlike_calls import called, minority

if TYPE_CHECKING:
    from ..view.groups import Group
    from ..view.job import Job
    from ..view.verdict import Verdict

# All ranks have to name one type in these, and do so in what a page says of them.
_OF_ONE_TYPE = frozenset({
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce",
    "all_reduce_coalesced", "broadcast", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
})  # fmt: skip
_REMEMBERED_SECONDS = 300.0


class UnlikeTypes:
    """Remembers what was seen for a while: ranks describe an operation only where they stand still for a moment."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, Verdict]] = {}

    def sample(self, job: Job) -> list[Verdict]:
        """The notices that stand: one for each process group."""
        dtypes = job.columns.rows.dtypes
        for group in job.groups.unlike(dtypes, dtypes != 0):  # nearly always there is none
            verdict = _unlike(job, group)
            if verdict is not None:
                self._found[group.id] = job.time, verdict
        since = job.time - _REMEMBERED_SECONDS
        self._found = {each: found for each, found in self._found.items() if each in job.groups and found[0] > since}
        return [verdict for _, verdict in self._found.values()]


def _unlike(job: Job, group: Group) -> Verdict | None:
    by_type: dict[tuple[int, str], dict[str, list[int]]] = {}
    operations = group.operations(group.numbers.tolist())
    for number, operation in operations.items():
        if operation.name in _OF_ONE_TYPE and operation.dtype:
            of_call = by_type.setdefault((operation.sequence, operation.name), {})
            of_call.setdefault(operation.dtype, []).append(number)
    for (sequence, _), types in by_type.items():
        if len(types) > 1:
            sides = sorted(map(sorted, types.values()), key=lambda side: (-len(side), side))
            suspects, calls = minority(sides), called(sides, operations)
            return job.verdict(
                "unlike types", "TW-H2", group, suspects,
                f"#{sequence} of {group.title} was called with different types, and nothing stopped: its result is "
                f"wrong; {', '.join(calls)}",
                [f"{call} as #{sequence}" for call in calls], Basis.STATE, victims=0, level="notice",
                sides=[] if suspects else sides,
            )  # fmt: skip
    return None
