"""Counts of operations from torch's Flight Recorder, sampled by a thread of the rank.

The recorder is on by default. It keeps a ring of the last operations and, for each group, the number of the last one
enqueued and the last one completed. These two numbers are cheap to read. The ring is not: reading holds the GIL while
it copies up to 2000 entries. So it is read only where a group has stood still for a while, and once for each pause.
The ring tells what the two numbers cannot: gloo's threads may report completions out of order, and gloo counts send and
recv among the operations although ranks of a group differ in those.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from tensorwire._ground.copies import not_copied

from ..model import Thresholds
from ..page import native
from ..page.recorder_entries import MADE_OF_ALL_REDUCE, operation_info
from .process_groups import TORCH_FUNCTIONS

if TYPE_CHECKING:
    from .process_groups import BackendGroup, BackendGroups

OPEN_SECONDS = 1.0  # an open operation that does not move for so long is read from the ring
_IDLE_SECONDS = 2.5  # so is a group without one; twice as long after every time that taught nothing
_MAX_IDLE_SECONDS = 20.0  # less than a hang takes to be called one: by then the numbers have to be right
_RING_SHARE = 0.01  # of the time that reading the ring may take
_RATE_SECONDS = 1.0
_MIN_RATES = 10
_MAX_RATES = 300
_SLOW = Thresholds().slow_factor  # times that the analyzer calls slow are no good times
_LASTING = 6  # slow rates for so many times the good times that are remembered, half an hour at most, are normal now


@dataclass(slots=True)
class _GroupState:
    """A group as its counts stand."""

    group: BackendGroup
    offset: int = 0  # what torch's numbers count besides collectives, up to the last collective
    unseen: int = 0  # of these, the ones that were not seen to be made
    shown: int = 0  # completed collectives that were written
    enqueued: int = 0  # torch's numbers
    completed: int = 0
    counted: int = 0  # completed ones that were written: gloo's threads report out of order, and the ring is right
    since: float = 0.0
    wall_ns: int = 0  # by how much the wall's clock was ahead then
    is_certain: bool = False  # the ring was read since they moved
    rate_since: float = 0.0
    rate_completed: int = 0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_RATES))
    baseline: float = 0.0
    num_slow: int = 0  # windows far below the baseline, less those since that were not


class FlightRecorder:
    """Reads one recorder. For one thread.

    Args:
        handle: of the page.
        groups: of this rank.
        dump: gives JSON, with the ring's entries or without.
        num_collectives: counts those of a group by torch's name, see Messages.
        root: gives that of an operation, see Arguments.
    """

    __reduce_ex__ = not_copied("the page of this process", "attach in the other process")

    def __init__(
        self,
        handle: int,
        groups: BackendGroups,
        dump: Callable[[bool], bytes],
        num_collectives: Callable[[str], int | None] = lambda _: None,
        root: Callable[[str, range], int] = lambda *_: native.NO_ROOT,
    ) -> None:
        self._handle = handle
        self._groups = groups
        self._dump = dump
        self._num_collectives = num_collectives
        self._root = root
        self._states: dict[str, _GroupState] = {}
        self._nameless = set[str]()  # groups that have no name are not shown
        self._last_status = b""
        self._status: dict[str, tuple[int, int]] = {}
        self._idle_seconds = _IDLE_SECONDS
        self._ring_from = 0.0

    def poll(self) -> None:
        """Bring the page's counts up to date."""
        now = time.monotonic()
        self._read_status()
        if self._status.keys() - self._states.keys() - self._nameless and now >= self._ring_from:
            self._read_ring(now)
        for key, state in self._states.items():
            if key in self._status:
                self._update(state, *self._status[key], now)
        if now >= self._ring_from and any(self._is_doubtful(each, now) for each in self._states.values()):
            self._read_ring(now)

    def recount(self) -> None:
        """Write the counts that were left to the dispatcher so far.

        For a group that stands still they come from the ring: torch's own may be too low for good.
        """
        for state in self._states.values():
            self._count(state, state.counted)

    def poll_closely(self) -> None:
        """As `poll`, but read the ring at any cost: there is no later."""
        for _ in range(3):  # operations that fail with the job may be marked as completed meanwhile
            self._read_status()
            self._read_ring(time.monotonic())
            if all(state.is_certain for state in self._states.values()):
                return

    @property
    def num_completed(self) -> int:
        """Completed operations of all groups, as torch counts them."""
        return sum(completed for _, completed in self._status.values())

    @property
    def num_enqueued(self) -> int:
        """Operations of all groups that were called so far, as torch counts them."""
        return sum(enqueued for enqueued, _ in self._status.values())

    @property
    def has_open(self) -> bool:
        """Whether a group has an operation that is not known to be completed."""
        return any(state.shown < state.enqueued - state.offset for state in self._states.values())

    def num_collectives(self, group: BackendGroup) -> int | None:
        """How many collectives a group has made so far, by its last entry in the ring. This is slow."""
        entries = json.loads(self._dump(True)).get("entries", [])
        numbers = [each["collective_seq_id"] for each in entries if self._groups.name_of(each)[0] == group.torch_name]
        return max(numbers, default=None)

    def _read_status(self) -> None:
        status = self._dump(False)
        if status == self._last_status:
            return
        self._last_status = status
        self._status = {
            key: (int(numbers["last_enqueued_collective"]), int(numbers["last_completed_collective"]))
            for key, numbers in json.loads(status).get("pg_status", {}).items()
            if int(numbers["last_enqueued_collective"]) > 0
        }

    def _update(self, state: _GroupState, enqueued: int, completed: int, now: float) -> None:
        if (enqueued, completed) != (state.enqueued, state.completed) and self._leave_out_messages(state, enqueued):
            state.enqueued, state.completed = enqueued, completed
            state.since, state.is_certain = now, False
            state.wall_ns = time.time_ns() - native.now()
            # The offset is that of the last operation. Fewer messages were made before the last one that is completed.
            self._count(state, completed if state.offset == 0 else max(completed, state.shown + state.offset))
        if now - state.rate_since >= _RATE_SECONDS:
            self._rate(state, now)

    def _leave_out_messages(self, state: _GroupState, enqueued: int) -> bool:
        """Set the offset of a group that makes messages too. False: it cannot be told now, and next time will do."""
        collectives = self._num_collectives(state.group.torch_name)
        if collectives is None:
            return True
        if collectives < 0 or self._dump(False) != self._last_status:
            return False
        state.offset = max(enqueued - (collectives - state.unseen), 0)
        return True

    def _count(self, state: _GroupState, completed: int) -> None:
        state.counted = completed
        enqueued = max(state.enqueued - state.offset, 0)
        completed = state.shown = min(max(completed - state.offset, 0), enqueued)
        native.counts(self._handle, state.group.slot, enqueued, completed)

    def _rate(self, state: _GroupState, now: float) -> None:
        """Learn from the operations since the last time. A time without any does not count: it may be another phase."""
        done = state.shown - state.rate_completed
        if state.rate_since and done > 0:
            self._learn(state, done / (now - state.rate_since))
        state.rate_since, state.rate_completed = now, state.shown

    def _learn(self, state: _GroupState, rate: float) -> None:
        """The baseline is the upper quartile: the rate of the group when all is well.

        A job that crawls must not wear down the baseline that shows it. Rates far below do not count until they have
        lasted long enough to be the normal ones.
        """
        if rate < state.baseline / _SLOW:
            state.num_slow += 1
            if state.num_slow < _LASTING * len(state.rates):
                return
            state.rates.clear()
            state.baseline, state.num_slow = 0.0, 0
        state.num_slow = max(0, state.num_slow - 1)
        state.rates.append(rate)
        if len(state.rates) >= _MIN_RATES:
            rates = sorted(state.rates)
            state.baseline = rates[len(rates) * 3 // 4]
            native.baseline(self._handle, state.group.slot, state.baseline)

    def _is_doubtful(self, state: _GroupState, now: float) -> bool:
        if state.is_certain:
            return False
        is_open = state.completed < state.enqueued
        return now - state.since >= (OPEN_SECONDS if is_open else self._idle_seconds)

    def _read_ring(self, now: float) -> None:
        before = self._status
        newest: dict[str, Any] = {}
        oldest_open: dict[str, tuple[Any, range]] = {}
        for entry in json.loads(self._dump(True)).get("entries", []):
            if entry["is_p2p"]:
                continue
            key = str(entry["pg_id"])
            if not entry["retired"] and entry["state"] != "completed":
                before_ns = newest[key]["time_created_ns"] if key in newest else 0
                oldest_open.setdefault(key, (entry, range(before_ns, entry["time_created_ns"])))
            newest[key] = entry
        taught = False
        for key, entry in newest.items():
            if key in self._states:
                continue
            name, description = self._groups.name_of(entry)
            if not name:
                self._nameless.add(key)
                continue
            group = self._groups.find(name, description, entry["profiling_name"].partition(":")[0])
            self._states[key] = _GroupState(group, since=now)
        self._read_status()
        for key, state in self._states.items():
            numbers = self._status.get(key)
            if numbers is not None:
                self._update(state, *numbers, now)
            if numbers != before.get(key):
                continue  # it moves
            state.is_certain = True
            if key in newest:
                taught |= self._correct(state, newest[key], oldest_open.get(key))
        self._idle_seconds = _IDLE_SECONDS if taught else min(2 * self._idle_seconds, _MAX_IDLE_SECONDS)
        self._ring_from = now + (time.monotonic() - now) / _RING_SHARE

    def _correct(self, state: _GroupState, newest: Any, oldest_open: tuple[Any, range] | None) -> bool:
        """Take over the ring's numbers of a group that stands still. Returns whether the offset was another one.

        Args:
            oldest_open: the entry, and when it was called.
        """
        group = state.group
        offset = state.enqueued - newest["collective_seq_id"]
        taught = bool(offset != state.offset)
        state.offset = offset
        collectives = self._num_collectives(group.torch_name)
        if collectives is not None and collectives >= 0:
            state.unseen = collectives - newest["collective_seq_id"]
        operation, root, function = newest, native.NO_ROOT, ""
        if oldest_open is None:
            self._count(state, state.enqueued)
        else:
            operation, called_ns = oldest_open
            self._count(state, operation["collective_seq_id"] - 1 + offset)
            root = self._root(group.torch_name, called_ns)
            if operation is newest:
                function = _waiting_function(operation["profiling_name"], group.torch_name)
        info = operation_info(operation, root, function)
        native.describe(self._handle, group.slot, info, _enter_ns(operation, state.wall_ns))
        return taught


def _waiting_function(profiling_name: str, torch_name: str) -> str:
    """torch's function that called an all_reduce that a thread waits in, for the recorder does not keep it; "" if none
    is found, or nothing is to be learnt."""
    if profiling_name.partition(":")[2] != "all_reduce":
        return ""
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            function = frame.f_code.co_name
            is_one = function in MADE_OF_ALL_REDUCE and frame.f_code.co_filename.endswith(TORCH_FUNCTIONS)
            if is_one and getattr(frame.f_locals.get("group"), "group_name", "") == torch_name:
                return function
            frame = frame.f_back
    return ""


def _enter_ns(entry: Any, wall_ns: int) -> int:
    """The time of entry on the page's clock. The recorder has the wall's, which may have been set since."""
    entered: int = min(max(entry["time_created_ns"] - wall_ns, 1), native.now())
    return entered
