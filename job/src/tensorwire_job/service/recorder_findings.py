"""Findings about a job without the probe, from the dumps of its ranks' Flight Recorders.

The analyzer is that of a job with the probe: dumps are one observation of it, in which processes are out of view.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from .. import words
from ..analyzer import Analyzer
from ..model import ASKED, MAX_CALLS, Call, Confidence, Observation, Process, ProcessGroup, Rank
from ..page import native

if TYPE_CHECKING:
    from ..model import Finding, Thresholds
    from .recorder_dumps import Dump, Entry

_WORLD: Final = "default_pg"
_LEVELS: Final = tuple(Confidence)


def findings_of(dumps: Mapping[int, Dump], thresholds: Thresholds = ASKED) -> list[Finding]:
    """What the analyzer finds, with the last calls of suspects as their stacks, and one level less confident: nothing
    is known of processes.

    A rank that may wait for a message that its recorder does not keep, or that still goes on, is told as a side.
    """
    analyzer = Analyzer(thresholds)
    observed = observation_of(dumps)
    for rank in analyzer.update(observed).stacks_of:
        if rank in dumps:
            analyzer.add_stack(rank, _last_call(dumps[rank]))
    return [_doubted(finding, dumps, thresholds) for finding in analyzer.update(observed).findings]


def place_of(dump: Dump) -> str:
    """Where a rank stands: "in all_reduce #38 of default_pg, called by train (train.py:6)"."""
    entry = _described(dump)
    if entry is None:
        return "has called nothing"
    called_by = f", called by {entry.line}" if entry.line else ""
    what = words.numbered(entry.operation, entry.operation.sequence, entry.title)
    return f"{'in' if entry.is_open else 'last called'} {what}{called_by}"


def _described(dump: Dump) -> Entry | None:
    """The oldest operation that is not complete, else the last."""
    return next((entry for entry in dump.entries if entry.is_open), dump.entries[-1] if dump.entries else None)


def _last_call(dump: Dump) -> str:
    entry = _described(dump)
    functions = entry.functions if entry else ()
    return "\n".join([f"{place_of(dump)}; this call was made by:", *(f"    {function}" for function in functions)])


def _doubted(finding: Finding, dumps: Mapping[int, Dump], thresholds: Thresholds) -> Finding:
    confidence = _LEVELS[min(finding.confidence.order + 1, len(_LEVELS) - 1)]
    facts = [_doubt(rank, dumps[rank], thresholds) for rank in finding.suspects if rank in dumps]
    if not any(facts):
        return replace(finding, confidence=confidence)
    others = [rank for rank in dumps if rank not in finding.suspects]
    return replace(
        finding, suspects=[], sides=[finding.suspects, others], confidence=Confidence.LOW,
        evidence=[*finding.evidence, *filter(None, facts)],
    )  # fmt: skip


def _doubt(rank: int, dump: Dump, thresholds: Thresholds) -> str:
    """Why a rank may not be the cause though it has not come to what others wait in."""
    if dump.has_messages:
        return f"rank {rank} may wait for a message, which this recorder does not keep"
    if dump.entries and not dump.entries[-1].is_open and dump.entries[-1].seconds < thresholds.hang_seconds:
        return f"rank {rank} went on: it made its last call {words.seconds(dump.entries[-1].seconds)} before its dump"
    return ""


def observation_of(dumps: Mapping[int, Dump]) -> Observation:
    """One look at the job. Ranks whose dump is missing are not in view."""
    told = [ranks for dump in dumps.values() for ranks in dump.members.values()]
    world_size = 1 + max([*dumps, *(rank for ranks in told for rank in ranks)])
    members = _Members(dumps, range(world_size))
    ranks = {rank: _rank(rank, world_size, dumps, members) for rank in dumps}
    return Observation(0.0, "", world_size, ranks)


class _Members:
    """The members of process groups, as far as dumps tell them: gloo's tell the world's alone."""

    def __init__(self, dumps: Mapping[int, Dump], world: Sequence[int]) -> None:
        self._dumps = dumps
        self._world = world
        self._known: dict[str, str] = {}
        self._seen: dict[str, set[int]] = defaultdict(set)
        self._completed: Counter[str] = Counter()
        self._ids: dict[tuple[int, str], str] = {}  # an entry asks for it, and a group may have thousands of members
        for rank, dump in dumps.items():
            for entry in dump.entries:
                self._known[entry.group] = entry.title
                self._seen[entry.group].add(rank)
        for rank, dump in dumps.items():
            for entry in dump.entries:
                if not (entry.is_open or entry.operation.is_pairwise):
                    group = self.id(rank, entry.group)
                    self._completed[group] = max(self._completed[group], entry.operation.sequence)

    def groups(self, rank: int) -> list[str]:
        """torch's names of the groups that a rank is in, of those that some rank has used."""
        return [name for name in self._known if rank in self._seen[name] or rank in self.of(rank, name)]

    def title(self, group: str) -> str:
        return self._known[group]

    def of(self, rank: int, group: str) -> Sequence[int]:
        """() if they are not known."""
        return self._dumps[rank].members.get(group) or (self._world if self._known[group] == _WORLD else ())

    def id(self, rank: int, group: str) -> str:
        """Ranks may use one name for different groups; their members tell those apart."""
        if (rank, group) not in self._ids:
            self._ids[rank, group] = f"{group}|{','.join(map(str, self.of(rank, group)))}"
        return self._ids[rank, group]

    def size(self, rank: int, group: str) -> int:
        """Where its members are not known, one more has yet to call anything, unless an operation is complete."""
        return len(self.of(rank, group)) or len(self._seen[group]) + (not self.completed(rank, group))

    def completed(self, rank: int, group: str) -> int:
        """The last operation that a member has completed: all have entered it."""
        return self._completed[self.id(rank, group)]


def _rank(rank: int, world_size: int, dumps: Mapping[int, Dump], members: _Members) -> Rank:
    collectives: dict[str, list[Entry]] = {group: [] for group in members.groups(rank)}
    messages: dict[tuple[str, str, int], list[Entry]] = defaultdict(list)
    calls: list[Call] = []
    for entry in dumps[rank].entries:
        operation = entry.operation
        if operation.is_pairwise:
            messages[entry.group, operation.name, operation.root].append(entry)
        else:
            collectives[entry.group].append(entry)
            line = 0 if entry.line is None else native.line_hash(entry.line.path, entry.line.name, entry.line.line)
            calls.append(Call(members.id(rank, entry.group), operation, line))
    groups = [_group(rank, name, entries, members) for name, entries in collectives.items()]
    groups += [_pair(rank, way, entries, members) for way, entries in messages.items()]
    process = Process("running", state="")
    return Rank(rank, world_size, "", 0, 0, process, groups, calls=calls[-MAX_CALLS:], calls_seconds=0.0)


def _group(rank: int, name: str, entries: list[Entry], members: _Members) -> ProcessGroup:
    opened = next((entry for entry in entries if entry.is_open), None)
    last = opened or (entries[-1] if entries else None)
    enqueued = entries[-1].operation.sequence if entries else members.completed(rank, name)
    return ProcessGroup(
        id=members.id(rank, name),
        name=members.title(name),
        size=members.size(rank, name),
        enqueued=enqueued,
        completed=opened.operation.sequence - 1 if opened else enqueued,
        open_seconds=opened.seconds if opened else None,
        idle_seconds=last.seconds if last else None,
        operation=last.operation if last else None,
        members=members.of(rank, name),
    )


def _pair(rank: int, way: tuple[str, str, int], entries: list[Entry], members: _Members) -> ProcessGroup:
    """The messages from one rank of a group to another. Their numbers are those of one end."""
    name, operation, peer = way
    ranks = members.of(rank, name)
    peer = ranks[peer] if peer < len(ranks) else peer
    source, target = (rank, peer) if operation == "send" else (peer, rank)
    opened = [entry for entry in entries if entry.is_open]
    completed = len(entries) - len(opened)
    last = opened[0] if opened else entries[-1]
    number = completed + 1 if opened else completed
    return ProcessGroup(
        id=f"{members.id(rank, name)}|{source}>{target}",
        name=members.title(name),
        size=2,
        enqueued=len(entries),
        completed=completed,
        open_seconds=last.seconds if opened else None,
        idle_seconds=last.seconds,
        operation=replace(last.operation, sequence=number, root=peer),
    )
