"""Plays a program until nothing moves any more, as gloo would.

What a rank waits for, and who can go on without whom, follows gloo's algorithms:

- A send ends when the other end has called the receive. Messages between two ranks meet in the order of their calls.
- Collectives of a group meet by their number in the group. Two of one number that differ in name never meet.
- No rank leaves all_reduce, reduce, all_gather, reduce_scatter, all_to_all or a barrier before all have come. A
  broadcast goes down a binomial tree; a rank leaves it once its children have come. In gather and scatter a rank waits
  for the root alone, and the root for all.
- Two operations of one group run at a time in each rank; the others wait for their turn.
- A rank that is sent more than it expects is aborted. One that is sent less goes on.
- Groups meet by torch's number of them, see making.py.
- A file lock has one holder. It goes to the next in the order in which they came. It is given back by its
  holder, or with the end of that process.
- A process that ends closes its connections. A rank that waits for data from it, or to it, fails.

Some ranks may be wildcards, which do all that the others need: replay.py asks what then would still stand.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from . import last_words
from .acts import Act, End, RankState
from .collectives import Meeting
from .locks import Locks
from .making import Making, numbers_of, tangled
from .messages import Messages
from .transfers import algorithm

if TYPE_CHECKING:
    import random

    from .programs import Call, Program

_IN_FLIGHT = 2  # torch's threads of a gloo group
_IN_PYTHON = ("lock", "store_poll")  # waits that a handler of a signal ends
_TOGETHER = 10.0  # in which the page keeps the first of several signals
_ABORT_SECONDS = 0.03
_LATE = 0.3  # of the aborts, see Exchange: seen in real runs, not measured
_AFTER = (0.01, 2.0)  # seconds after which a peer fails, see exit_reasons of the analyzer for the measurements


class Player:
    """One run. `play` takes it to the standstill; `signal` and `play` again take it on from there."""

    def __init__(
        self,
        program: Program,
        source: random.Random,
        wildcards: Collection[int] = (),
        *,
        goes_on: Collection[int] = (),
        stays: bool = False,
        has_launcher: bool = False,
        slowness: float = 1.0,
        lock_order: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Args:
        wildcards: ranks that make no calls, and do all that the others need.
        goes_on: ranks that become such at the end of their calls.
        stays: the others live on at the end of their calls.
        has_launcher: once a process has failed, all others are ended.
        slowness: a factor of the time between calls.
        lock_order: of file locks, the ranks in the order in which they have to have them.
        """
        self.program = program
        self.random = source
        self.wildcards = set(wildcards)
        self._goes_on, self._stays, self._has_launcher = frozenset(goes_on), stays, has_launcher
        self._slowness = slowness
        self.ranks = [RankState() for _ in program.calls]
        self.now = 0.0
        self.has_caught = False  # ranks have caught a signal
        self._gone: set[int] = set()
        self._stopped: set[int] = set()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._counts: dict[tuple[int, object], int] = defaultdict(int)
        self._messages = Messages(source)
        self._meetings: dict[tuple[object, int], Meeting] = {}
        self._running: dict[tuple[int, int], list[Act]] = defaultdict(list)
        self._later: dict[tuple[int, int], deque[Act]] = defaultdict(deque)
        self._handles: dict[tuple[int, int], Act] = {}
        self._keys: set[str] = set()
        self._added: dict[str, list[int]] = defaultdict(list)  # to counters of the store: a rank each time
        self.numbers = numbers_of(program, self.wildcards)  # torch's, of each rank's groups
        self._tangled = tangled(program, self.numbers)
        self._making: dict[int, Making] = {}
        self.locks = Locks(lock_order or {})
        for rank in range(program.world_size):
            if rank not in self.wildcards:
                self.after(self.random.uniform(0.0, 0.01), lambda rank=rank: self._step(rank))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (self.now + seconds, self._order, what))

    def play(self) -> None:
        """Until nothing moves. A wildcard sends to a rank that receives from any source where no other rank does."""
        while self._queue or self._receive_from_wildcard():
            self.now, _, what = heapq.heappop(self._queue)
            what()

    def _receive_from_wildcard(self) -> bool:
        act = self._messages.take_from_any() if self.wildcards else None
        if act is not None:
            self._finish(act)
        return bool(self._queue)

    def _add_wildcard(self, rank: int) -> None:
        self.wildcards.add(rank)
        for act in (*self._messages.take(rank), *self.locks.leave(rank, self.now, self.wildcards)):
            self._finish(act)
        for meeting in list(self._meetings.values()):
            self._settle(meeting)
        for act in (act for making in self._making.values() for act in making.settle()):
            self._finish(act)
        for state in self.ranks:
            if state.waits_for is not None and state.waits_for.call.name == "store_get":
                self._finish(state.waits_for)
        self._look_at_counters()

    def signal(self, rank: int, name: str, *, of_others: bool = False) -> None:
        """A signal to a rank. One that waits in gloo does not react to SIGINT, a stopped one to nothing but SIGKILL.

        Args:
            of_others: it is sent because the job has failed.
        """
        state = self.ranks[rank]
        if not state.is_alive:
            return
        if name == "SIGKILL":
            self.end(rank, "", "", of_others=of_others)
            return
        if not state.signal or self.now - state.signal_time > _TOGETHER:  # as the page keeps them
            state.signal, state.signal_time = name, self.now
        if state.local == "stop":
            return
        if name != "SIGINT":
            self.end(rank, name, "interruption", of_others=of_others)
        elif state.local == "spin" or (state.waits_for is not None and state.waits_for.call.name not in _IN_PYTHON):
            state.is_pending = True
        else:
            self.end(rank, "KeyboardInterrupt", "interruption", of_others=of_others)

    def time_out(self) -> None:
        """Ranks give up what they wait in, in time: keys of the store first, then what gloo does."""
        for rank, state in enumerate(self.ranks):
            act = state.waits_for
            if not state.is_alive or act is None:
                continue
            found = last_words.of_time_out(act)
            if found is not None:
                seconds, words = found
                seconds += state.waits_since + self.random.uniform(0.0, 0.02) - self.now
                self.after(seconds, lambda rank=rank, words=words: self.end(rank, words, "failure", of_others=True))

    def end(self, rank: int, words: str, kind: str, *, of_others: bool = False) -> None:
        """The process of a rank ends, and its connections close."""
        state = self.ranks[rank]
        if not state.is_alive:
            return
        heard = state.local_since if state.local in ("stop", "spin") else self.now
        state.end = End(self.now, words, kind, of_others, heard)
        state.local = ""
        self._gone.add(rank)
        self._take_out(rank)
        for act in self.locks.leave(rank, self.now, self.wildcards | self._gone):
            self._finish(act)
        for other in range(len(self.ranks)):
            self._notice(other)
        if self._has_launcher and words != "exit 0":
            self._has_launcher = False
            self._end_all()

    def stop(self, rank: int) -> None:
        """The process is stopped, and with it the threads that transfer its data."""
        self._stopped.add(rank)
        self._take_out(rank)

    def _take_out(self, rank: int) -> None:
        self._messages.lose(rank)
        for meeting in list(self._meetings.values()):
            self._settle(meeting)

    def _end_all(self) -> None:
        """As torchrun does once a process has failed."""
        begin = self.random.uniform(0.05, 1.0)
        for each in range(len(self.ranks)):
            self.after(begin + 0.001 * each, lambda each=each: self.signal(each, "SIGTERM", of_others=True))
            self.after(begin + 30.0, lambda each=each: self.signal(each, "SIGKILL", of_others=True))

    # A rank takes its calls in turn.

    def _step(self, rank: int) -> None:
        state = self.ranks[rank]
        if not state.is_alive or state.local or state.waits_for is not None or rank in self.wildcards:
            return
        if state.is_pending:
            self.end(rank, "KeyboardInterrupt", "interruption")
            return
        calls = self.program.calls[rank]
        if state.place >= len(calls):
            self._at_end(rank)
            return
        call = calls[state.place]
        state.place += 1
        self._call(rank, state, call)

    def _at_end(self, rank: int) -> None:
        state = self.ranks[rank]
        if rank in self._goes_on:
            self._add_wildcard(rank)
        elif not self._stays and not state.is_done:
            state.is_done = True
            self.after(0.05, lambda: self.end(rank, "exit 0", "end"))

    def _call(self, rank: int, state: RankState, call: Call) -> None:
        name = call.name
        if name in _LOCAL:
            _LOCAL[name](self, rank, state, call)
            return
        if name == "wait":
            self._wait(rank, self._handles[rank, call.handle])
            return
        act = Act(rank, state.place - 1, call, self._number(rank, call), self.now, self._tag(rank, call))
        state.acts.append(act)
        if call.handle:
            self._handles[rank, call.handle] = act
        self._post(act)
        if call.handle:
            self._go_on(rank)
        else:
            self._wait(rank, act)

    def _number(self, rank: int, call: Call) -> int:
        key: object
        if call.is_collective:
            key = call.group
        elif call.is_message:
            key = call.name.removeprefix("i"), call.peer
        else:
            key = call.name, call.group, call.key
        self._counts[rank, key] += 1
        return self._counts[rank, key]

    def _tag(self, rank: int, call: Call) -> int:
        """gloo gives a monitored barrier two of the numbers that collectives have."""
        key = call.group, "tag" if call.is_collective or call.name == "monitored_barrier" else call.name
        first = self._counts[rank, key] + 1
        self._counts[rank, key] += 2 if call.name == "monitored_barrier" else 1
        return first

    def _wait(self, rank: int, act: Act) -> None:
        if act.done is not None:
            self._go_on(rank)
        else:
            self.ranks[rank].waits_for, self.ranks[rank].waits_since = act, self.now
            self._notice(rank)

    def _go_on(self, rank: int) -> None:
        self.after(self._slowness * self.random.uniform(0.0005, 0.003), lambda: self._step(rank))

    # What meets.

    def _post(self, act: Act) -> None:
        call, rank = act.call, act.rank
        if call.is_collective:
            running = self._running[rank, call.group]
            if len(running) >= _IN_FLIGHT:
                self._later[rank, call.group].append(act)
            else:
                running.append(act)
                self._meet(act)
        elif call.is_message:
            self._deliver(self._messages.post(act, self.wildcards))
        elif call.name == "lock":
            given = self.locks.take(act, self.wildcards | self._gone)
            if given is not None:
                self._finish(given)
        elif call.name == "unlock":
            given = self.locks.give_back(call.key, rank, self.now, self.wildcards | self._gone)
            self._finish(act)
            if given is not None:
                self._finish(given)
        elif call.name == "store_set":
            self._keys.add(call.key)
            self._finish(act)
            for state in self.ranks:
                waiting = state.waits_for
                if waiting is not None and waiting.call.name == "store_get" and waiting.call.key == call.key:
                    self._finish(waiting)
        elif call.name == "store_get":
            if call.key in self._keys or self.wildcards:
                self._finish(act)
        elif call.name == "store_add":
            self._added[call.key].append(rank)
            self._finish(act)
            self._look_at_counters()
        elif call.name == "store_poll":
            if self._is_full(call.key):
                self._finish(act)
        elif rank not in self.program.groups[call.group][1]:
            self._finish(act)  # a group of others
        elif call.name == "new_group":
            number = self.numbers[rank][call.group]
            making = self._making.setdefault(number, Making(self.random, self.wildcards))
            for each in making.enter(act, self.program.groups[call.group][1]):
                self._finish(each)
        else:  # init, monitored_barrier
            self._meet(act)

    def _is_full(self, key: str) -> bool:
        return len(self._added[key]) + len(self.wildcards.difference(self._added[key])) >= len(self.ranks)

    def _look_at_counters(self) -> None:
        for state in self.ranks:
            act = state.waits_for
            if act is not None and act.call.name == "store_poll" and self._is_full(act.call.key):
                self._finish(act)

    def _meet(self, act: Act) -> None:
        number = self.numbers[act.rank].get(act.call.group, 0)
        key = algorithm(act.call), number, act.tag
        meeting = self._meetings.get(key)
        if meeting is None:
            members, making = self.program.members(act.call, act.rank), None
            if number in self._tangled:
                members, making = tuple(range(len(self.ranks))), self._making[number]
            is_late = self.random.random() < _LATE
            meeting = Meeting(members, self.wildcards, self._gone, self._stopped, is_late, making)
            self._meetings[key] = meeting
        meeting.enter(act)
        self._settle(meeting)
        if all(rank in meeting.acts and meeting.acts[rank].done is not None for rank in meeting.members):
            del self._meetings[key]

    def _settle(self, meeting: Meeting) -> None:
        aborted, through = meeting.settle()
        for act in through:
            self._finish(act)
        for rank in aborted:
            self._abort(rank)
        for act in meeting.acts.values():
            if act.lost >= 0:
                self._release(act)
                self._notice(act.rank)

    def _deliver(self, ends: list[Act]) -> None:
        """Both ends of a message, or one whose other end is a wildcard."""
        sent = max((act.call.numel for act in ends if act.call.name in ("send", "isend")), default=0)
        for act in ends:
            if act.call.name in ("send", "isend") or act.call.numel >= sent or len(ends) == 1:
                self._finish(act)
            else:
                self._abort(act.rank)

    def _abort(self, rank: int) -> None:
        """The process ends a moment later; until then it may make further calls."""
        self._messages.lose(rank)
        seconds = self.random.uniform(0.0, _ABORT_SECONDS)
        self.after(seconds, lambda: self.end(rank, "killed by SIGABRT", "crash", of_others=True))

    def _finish(self, act: Act) -> None:
        if act.done is not None:
            return
        act.done = self.now
        self._release(act)
        state = self.ranks[act.rank]
        if state.waits_for is act:
            state.waits_for = None
            self._go_on(act.rank)

    def _release(self, act: Act) -> None:
        """Another operation of the group has its turn."""
        key = act.rank, act.call.group
        running = self._running[key] if act.call.is_collective else []
        if act in running:
            running.remove(act)
            if self._later[key]:
                following = self._later[key].popleft()
                running.append(following)
                self._meet(following)

    # What fails.

    def _notice(self, rank: int) -> None:
        """The rank fails if it waits for data of a process that is gone."""
        state = self.ranks[rank]
        act = state.waits_for
        if not self._gone or act is None or act.done is not None or state.is_failing or not state.is_alive:
            return
        if act.call.is_message and act.call.peer in self._gone:
            act.lost = act.call.peer
        if act.lost < 0:
            return
        state.is_failing = True
        words = last_words.of_lost_peer(act, act.lost, self.random)
        low, high = _AFTER
        self.after(low * (high / low) ** self.random.random(), lambda: self._fail(rank, words))

    def _fail(self, rank: int, words: str) -> None:
        """An interruption that waited for the interpreter comes first."""
        is_pending = self.ranks[rank].is_pending
        words, kind = ("KeyboardInterrupt", "interruption") if is_pending else (words, "failure")
        self.end(rank, words, kind, of_others=True)


def _sleep(player: Player, rank: int, state: RankState, call: Call) -> None:
    state.local, state.local_since = call.name, player.now
    if call.name == "stop":
        player.stop(rank)


def _die(player: Player, rank: int, state: RankState, call: Call) -> None:
    kinds = {"SIGKILL": "", "killed by SIGSEGV": "crash", "exit 0": "end", "exit 3": "end"}
    words = "" if call.key == "SIGKILL" else call.key
    player.end(rank, words, kinds.get(call.key, "failure"))


def _signals(player: Player, rank: int, state: RankState, call: Call) -> None:
    """To this rank and to others: key has the name, and counts the ranks and their gaps in milliseconds."""
    for other, gap in zip(call.counts[::2], call.counts[1::2], strict=True):
        player.after(gap / 1000, lambda other=other: player.signal(other, call.key))
    player._go_on(rank)


def _seize(player: Player, rank: int, state: RankState, call: Call) -> None:
    player.locks.seize(call.key)
    player._go_on(rank)


_LOCAL = {
    "sleep": _sleep,
    "loop": _sleep,
    "spin": _sleep,
    "stop": _sleep,
    "seize": _seize,
    "die": _die,
    "signals": _signals,
}
