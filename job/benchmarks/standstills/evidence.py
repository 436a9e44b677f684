"""What probes and kernels would report of a standstill: an observation of it at one time."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorwire_job.model import IN_THREAD, MAX_CALLS, Call, Observation, Operation, Process, ProcessGroup, Rank

if TYPE_CHECKING:
    from .acts import Act, RankState
    from .play import Player
    from .programs import Call as ProgramCall

_NODE = "node"
_FIRST_PID = 1000
_HEARTBEAT = 0.1
_READ_AFTER = 2.0  # seconds of a standstill after which a rank reads its history
_SHOWN_AFTER = 1.0  # seconds of a wait for a message after which the page shows it
_ACTIVITIES = {
    "recv_any": "recv from any source",
    "monitored_barrier": "monitored_barrier",
    "new_group": "new_group",
    "store_get": "Store.wait",
}
_SIZES_DIFFER = ("all_to_all", "scatter", "barrier")
_BACKGROUND = 1e6  # seconds on the clock of observations at which the job began


@dataclass(frozen=True, slots=True)
class Noise:
    """A page that is not as it should be: of this rank, as of that moment; None: it is missing."""

    rank: int
    time: float | None
    until: float = float("inf")  # the clock of the job; from then on the page is fresh


def observe(player: Player, time: float, noise: Noise | None = None) -> Observation:
    """The job at this time on its clock, which is past the last event of the player."""
    ranks: dict[int, Rank] = {}
    for number, state in enumerate(player.ranks):
        stale = noise is not None and noise.rank == number and time < noise.until
        if stale and noise is not None and noise.time is None:
            continue
        seen_at = noise.time if stale and noise is not None and noise.time is not None else time
        ranks[number] = _rank(player, number, state, time, min(seen_at, _last_look(state, time)))
    return Observation(_BACKGROUND + time, "run", player.program.world_size, ranks)


def _last_look(state: RankState, time: float) -> float:
    """The time of the page: it stands still once the process has ended or is stopped, or Python's lock is not free."""
    if state.end is not None:
        return min(time, state.end.heard)
    return min(time, state.local_since) if state.local in ("stop", "spin") else time


def _rank(player: Player, number: int, state: RankState, time: float, page: float) -> Rank:
    acts = [act for act in state.acts if act.entered <= page]
    setup, since = _setup(acts, page)
    waits = state.waits_for if state.waits_for is not None and state.waits_since <= page else None
    activity, active_since = _ACTIVITIES.get(waits.call.name, "") if waits is not None else "", state.waits_since
    lock = _lock(player, acts, page) if not activity else None
    if lock is not None and lock.holder is not None:
        activity, active_since = f"file lock (pid {_FIRST_PID + lock.holder})", max(lock.entered, lock.held_since)
    read_at = _history_read(state, page, acts)
    return Rank(
        rank=number,
        world_size=player.program.world_size,
        node=_NODE,
        pid=_FIRST_PID + number,
        generation=0,
        process=_process(state, time, page),
        process_groups=_groups(player, number, state, acts, time, page) if setup == "initialized" else [],
        heartbeat_seconds=time - page + _HEARTBEAT,
        setup=setup,
        setup_seconds=time - since,
        activity=activity,
        activity_seconds=time - active_since if activity else None,
        calls=[] if read_at is None else _history(player, state, [a for a in acts if a.entered <= read_at], page),
        calls_seconds=None if read_at is None else time - read_at,
    )


def _lock(player: Player, acts: list[Act], page: float) -> Act | None:
    """The file lock that a rank waits for, or that it got as its holder ended, and has completed nothing since."""
    found = next((act for act in reversed(acts) if act.call.name == "lock"), None)
    if found is None or found.holder is None or found.done is None or found.done > page:
        return found
    end = player.ranks[found.holder].end if found.holder >= 0 else None
    later = [act for act in acts if act is not found and act.done is not None and found.done <= act.done <= page]
    moved = any(act.call.is_collective or act.call.is_message for act in later)
    return found if end is not None and end.time <= found.done and not moved else None


def _setup(acts: list[Act], page: float) -> tuple[str, float]:
    if not acts:
        return "before init", 0.0
    done = acts[0].done
    return ("initialized", done) if done is not None and done <= page else ("in init", acts[0].entered)


def _process(state: RankState, time: float, page: float) -> Process:
    signal = {"signal": state.signal, "signal_seconds": time - state.signal_time} if state.signal else {}
    if state.signal and state.signal_time > page:
        signal = {}
    end = state.end
    if end is None:
        runs = state.local in ("loop", "spin")
        life, letter = ("stopped", "T") if state.local == "stop" else ("running", "R" if runs else "S")
        return Process(life, letter, cpu_seconds=time if letter == "R" else 1.0, **signal)
    ago = time - end.time
    if end.words and end.kind != "crash":
        return Process(
            "exited", cpu_seconds=1.0, exit_reason=end.words, gone_seconds=ago, exit_kind=end.kind, exit_seconds=ago,
            **signal,
        )  # fmt: skip
    told = {"exit_reason": end.words, "exit_kind": end.kind, "exit_seconds": ago} if end.words else {}
    return Process("lost", cpu_seconds=1.0, gone_seconds=time - end.heard, **told, **signal)


def _groups(
    player: Player, number: int, state: RankState, acts: list[Act], time: float, page: float
) -> list[ProcessGroup]:
    made = {act.call.group for act in acts if act.call.name == "new_group"}  # those that it is making are shown
    rows = []
    by_group: dict[int, list[Act]] = {}
    ways: dict[tuple[int, int], list[Act]] = {}
    for act in acts:
        if act.call.is_collective:
            by_group.setdefault(act.call.group, []).append(act)
        elif act.call.is_message and act.call.name != "recv_any":
            ways.setdefault(_way(act), []).append(act)
    for index, (name, members) in enumerate(player.program.groups):
        if number in members and (index == 0 or index in made):
            own_id = _id(player, number, index)
            rows.append(_collectives(own_id, name, members, state, by_group.get(index, []), time, page))
    for way, own in ways.items():
        rows.append(_messages(way, state, own, time, page))
    return rows


def _collectives(
    own_id: str, name: str, members: tuple[int, ...], state: RankState, acts: list[Act], time: float, page: float
) -> ProcessGroup:
    opened = [act for act in acts if _done(act, state, page) is None]
    ends = [done for act in acts if (done := _done(act, state, page)) is not None]
    shown = opened[0] if opened else acts[-1] if acts else None
    return ProcessGroup(
        id=own_id,
        name=name,
        size=len(members),
        enqueued=len(acts),
        completed=opened[0].number - 1 if opened else len(acts),
        open_seconds=time - opened[0].entered if opened else None,
        idle_seconds=time - max(ends) if ends else None,
        operation=None if shown is None else _operation(shown, is_open=bool(opened)),
        members=members,
    )


def _done(act: Act, state: RankState, page: float) -> float | None:
    """torch counts an operation that fails as completed."""
    if act.done is not None and act.done <= page:
        return act.done
    end = state.end
    if end is not None and end.time <= page and end.kind == "failure" and state.waits_for is not None:
        return end.time
    return None


def _messages(way: tuple[int, int], state: RankState, acts: list[Act], time: float, page: float) -> ProcessGroup:
    waits = state.waits_for
    is_open = waits is not None and any(act is waits for act in acts) and page - state.waits_since >= _SHOWN_AFTER
    shown = waits if is_open and waits is not None else acts[-1]
    ends = [act.done for act in acts if act.done is not None and act.done <= page]
    return ProcessGroup(
        id=_id_of_way(way),
        name="default_pg",
        size=2,
        enqueued=len(acts),
        completed=shown.number - 1 if is_open else len(acts),
        open_seconds=time - state.waits_since if is_open else None,
        idle_seconds=time - max(ends) if ends else None,
        operation=_operation(shown, is_open=is_open),
    )


def _way(act: Act) -> tuple[int, int]:
    return (act.rank, act.call.peer) if act.call.name in ("send", "isend") else (act.call.peer, act.rank)


def _id(player: Player, rank: int, group: int) -> str:
    """Made of torch's number of the group and of its members."""
    members = player.program.groups[group][1]
    return f"{player.numbers[rank].get(group, 0) + 1:08x}{zlib.crc32(repr(members).encode()):08x}"


def _id_of_way(way: tuple[int, int]) -> str:
    return f"{(1 << 40) + (way[0] << 16) + way[1]:016x}"


def _operation(act: Act, *, is_open: bool) -> Operation:
    call = act.call
    if call.is_message:
        name = "send" if call.name in ("send", "isend") else "recv"
        return Operation(act.number, name, "float32", call.numel, call.peer, _hash("", call.numel))
    numel = -1 if call.name in _SIZES_DIFFER else call.numel
    root = call.root if is_open else -1
    dtype = "" if call.name == "barrier" else "float32"
    return Operation(act.number, call.name, dtype, call.numel, root, _hash(call.name, numel))


def _hash(name: str, numel: int) -> int:
    return zlib.crc32(f"{name}|{numel}".encode()) | 1 << 40


def _history_read(state: RankState, page: float, acts: list[Act]) -> float | None:
    """When the rank read its history last, by the time of its page: once it stood still, or at its end."""
    end = state.end
    is_told = end is not None and end.time <= page and end.kind in ("failure", "interruption", "crash")
    if is_told and end is not None and "SIGHUP" not in end.words and "SIGSEGV" not in end.words:
        return end.time
    moves = [act.entered for act in acts[-1:]] + [act.done for act in acts if act.done is not None and act.done <= page]
    still = max(moves, default=0.0)
    return still + _READ_AFTER if page - still >= _READ_AFTER else None


def _history(player: Player, state: RankState, acts: list[Act], page: float) -> list[Call]:
    known = [act for act in acts if act.call.is_collective or act.call.is_message][-MAX_CALLS:]
    return [_call(player, act) for act in known]


def _call(player: Player, act: Act) -> Call:
    call: ProgramCall = act.call
    is_paired = call.is_message and call.peer >= 0
    group = _id_of_way(_way(act)) if is_paired else _id(player, act.rank, call.group)
    operation = _operation(act, is_open=True)  # kernels note roots
    line = zlib.crc32(f"line {call.line}".encode()) | (IN_THREAD if call.is_in_thread else 0)
    return Call(group, operation, line, call.counts)


def stack(player: Player, rank: int) -> str:
    """As faulthandler writes it. A loop that polls stands in one of its lines."""
    state = player.ranks[rank]
    call = player.program.calls[rank][max(state.place - 1, 0)]
    inner = "sleep" if state.local else call.name
    line = 1 + rank % 2 if inner == "store_poll" else 1
    outer = state.place if state.local else call.line
    calls = f'  File "train.py", line {line} in {inner}\n  File "train.py", line {100 + outer} in <module>'
    return f"Current thread 0x{rank + 1:016x} (most recent call first):\n{calls}\n"


def as_told(observation: Observation) -> Mapping[int, str]:
    """A line about each rank, for a reader."""
    lines = {}
    for number in range(observation.world_size):
        rank = observation.ranks.get(number)
        if rank is None:
            lines[number] = "not in view"
            continue
        opened = [
            f"in {row.operation.name} #{row.open_sequence} of {row.name} {list(row.members)} {row.operation.root}"
            for row in rank.process_groups
            if row.open_seconds is not None and row.operation is not None
        ]
        process = rank.process
        words = [process.life, process.exit_reason, process.signal, rank.activity, *opened]
        lines[number] = ", ".join(filter(None, words))
    return lines
