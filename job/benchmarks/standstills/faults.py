"""One fault at a random place of a program. The rank to blame is known.

A fault is drawn by kind first, so that seldom kinds of calls have their share. It befalls one call of one rank, in one
step of the training; the rank goes on with its program from there, if it can.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from . import checks, grouping
from .acts import Fault
from .programs import ROOTED, Call, Program

KINDS = (
    "skip", "repeat", "swap", "another tensor", "another peer", "another root", "another operation", "wrong split",
    "stop", "sleep", "die", "signal to one", "signal to some", "signal to all", "spin", "slipped into a lock",
    "lock held elsewhere", "stuck before polling", "race of threads", *grouping.KINDS, *checks.KINDS,
)  # fmt: skip
WORDS = (
    "SIGKILL", "killed by SIGSEGV", "ValueError: expected a batch of 32, got 31", "exit 3", "exit 0",
    "OutOfMemoryError: out of memory",
)  # fmt: skip
"""Ends of a process that dies by itself."""
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
_ONCE = ("new_group", "init")  # without these a real program ends with an error of its own: no fault of the job
_CALLS_OF_ALL = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "barrier", "broadcast")


def befall(program: Program, source: random.Random, kind: str) -> tuple[Program, Fault] | None:
    """The program with a fault of this kind; None where it has no call that the fault can befall."""
    if kind == "signal to some" and program.world_size == 2:
        return None  # to one, or to all
    if kind in grouping.KINDS:
        return grouping.befall(program, source, kind)
    if kind in checks.KINDS:
        return checks.befall(program, source, kind)
    if kind == "lock held elsewhere":
        return _held_elsewhere(program, source)
    if kind == "race of threads":
        return _race(program, source)
    rank = source.randrange(program.world_size)
    calls = list(program.calls[rank])
    if kind in ("stop", "sleep", "spin", "die") or kind.startswith("signal"):
        place = source.randrange(len(calls) + 1)
        added, culprits = _local(program, source, kind, rank)
        calls[place:place] = [added]
        told = f"{added.name} {added.key} before call {place} of rank {rank}"
        fault = Fault(kind, culprits, "local" if culprits else "nobody", told)
        return _with(program, rank, calls), fault
    change = _CHANGES[kind]
    places = list(range(len(calls)))
    source.shuffle(places)
    for place in places:
        call = calls[place]
        changed = None if call.name in (*_ONCE, "wait") else change(program, source, rank, place)
        if changed is not None:
            size = len(program.members(call, rank))
            where = "local" if kind == "stuck before polling" else "pair" if size == 2 else "group"
            told = f"{kind} at call {place} of rank {rank}, {call.name}"
            return _with(program, rank, changed), Fault(kind, (rank,), where, told)
    return None


def _held_elsewhere(program: Program, source: random.Random) -> tuple[Program, Fault] | None:
    """Another process takes a lock before the program begins. The ranks that need it are in the right, and yet the ones
    to look at, unless all do."""
    keys = {call.key: None for own in program.calls for call in own if call.name == "lock"}
    if not keys:
        return None
    key = source.choice(list(keys))
    needing = tuple(n for n, own in enumerate(program.calls) if any((c.name, c.key) == ("lock", key) for c in own))
    culprits = needing if len(needing) < program.world_size else ()
    place = "group" if culprits else "nobody"
    fault = Fault("lock held elsewhere", culprits, place, f"{key} is held by another process")
    return _with(program, needing[0], [Call("seize", key=key), *program.calls[needing[0]]]), fault


def _race(program: Program, source: random.Random) -> tuple[Program, Fault] | None:
    """On some ranks the main thread comes first where on others another thread does: no rank is to blame."""
    threads = [
        (call.group, call.block, call.step)
        for own in program.calls
        for call in own
        if call.is_in_thread and len(program.groups[call.group][1]) > 1
    ]
    if not threads:
        return None
    group, block, step = at = source.choice(threads)
    members = program.groups[group][1]
    first = source.sample(members, source.randint(1, len(members) - 1))
    handles = max(each.handle for own in program.calls for each in own)
    calls = list(program.calls)
    for handle, rank in enumerate(first, handles + 1):
        own = list(calls[rank])
        place = next(i for i, c in enumerate(own) if c.is_in_thread and (c.group, c.block, c.step) == at)
        in_thread, main = own[place : place + 2]
        own[place : place + 2] = [replace(main, handle=handle), in_thread, Call("wait", main.line, handle=handle)]
        calls[rank] = tuple(own)
    told = f"the main thread comes first on ranks {sorted(first)} in step {step} of block {block}"
    return replace(program, calls=tuple(calls)), Fault("race of threads", (), "nobody", told)


def _with(program: Program, rank: int, calls: Sequence[Call]) -> Program:
    return replace(program, calls=(*program.calls[:rank], tuple(calls), *program.calls[rank + 1 :]))


def _local(program: Program, source: random.Random, kind: str, rank: int) -> tuple[Call, tuple[int, ...]]:
    """The call that is added, and who is to blame."""
    if kind in ("stop", "sleep", "spin"):
        name = source.choice(("sleep", "loop")) if kind == "sleep" else kind
        return Call(name), (rank,)
    if kind == "die":
        return Call("die", key=source.choice(WORDS)), (rank,)
    others = [other for other in range(program.world_size) if other != rank]
    source.shuffle(others)
    if kind == "signal to one":
        others = []
    elif kind == "signal to some":
        others = others[: source.randint(1, len(others) - 1)]
    ranks = (rank, *others)
    gaps = [0, *(round(10 ** source.uniform(0.0, 3.7)) for _ in others)]  # up to 5 s
    counts = tuple(value for pair in zip(ranks, gaps, strict=True) for value in pair)
    culprits = ranks if len(ranks) < program.world_size else ()
    return Call("signals", key=source.choice(SIGNALS), counts=counts), culprits


# Changes of one call: the calls of the rank afterwards, or None where the change does not apply.

_Change = Callable[[Program, random.Random, int, int], "list[Call] | None"]


def _skip(program: Program, source: random.Random, rank: int, place: int) -> list[Call]:
    calls = list(program.calls[rank])
    handle = calls[place].handle
    return [call for index, call in enumerate(calls) if index != place and not (handle and call.handle == handle)]


def _repeat(program: Program, source: random.Random, rank: int, place: int) -> list[Call]:
    calls = list(program.calls[rank])
    call = calls[place]
    if not call.handle:
        return [*calls[: place + 1], call, *calls[place + 1 :]]
    again = 1 + max(each.handle for own in program.calls for each in own)
    calls[place + 1 : place + 1] = [replace(call, handle=again)]
    wait = next(index for index, each in enumerate(calls) if each.name == "wait" and each.handle == call.handle)
    calls[wait + 1 : wait + 1] = [replace(calls[wait], handle=again)]
    return calls


def _swap(program: Program, source: random.Random, rank: int, place: int) -> list[Call] | None:
    calls = list(program.calls[rank])
    if place + 1 >= len(calls):
        return None
    one, other = calls[place], calls[place + 1]
    if other.name in (*_ONCE, "wait") or _bare(one) == _bare(other):
        return None
    return [*calls[:place], other, one, *calls[place + 2 :]]


def _bare(call: Call) -> Call:
    return replace(call, line=0, handle=0, step=0, block=0)


def _slipped_into_a_lock(program: Program, source: random.Random, rank: int, place: int) -> list[Call] | None:
    """What came after a lock is done with the lock held."""
    calls = list(program.calls[rank])
    follows = next((i for i in range(place + 1, len(calls)) if calls[i].name not in ("lock", "unlock")), None)
    if calls[place].name != "unlock" or follows is None or not calls[follows].is_collective or calls[follows].handle:
        return None
    return [*calls[:place], *calls[place + 1 : follows + 1], calls[place], *calls[follows + 1 :]]


def _another_tensor(program: Program, source: random.Random, rank: int, place: int) -> list[Call] | None:
    call = program.calls[rank][place]
    if call.numel < 1 or call.name == "all_to_all":
        return None
    return _put(program, rank, place, replace(call, numel=source.choice((2 * call.numel, -(-call.numel // 2)))))


def _another_peer(program: Program, source: random.Random, rank: int, place: int) -> list[Call] | None:
    call = program.calls[rank][place]
    others = [each for each in range(program.world_size) if each not in (rank, call.peer)]
    if not call.is_message or call.peer < 0 or not others:
        return None
    return _put(program, rank, place, replace(call, peer=source.choice(others)))


def _another_root(program: Program, source: random.Random, rank: int, place: int) -> list[Call] | None:
    call = program.calls[rank][place]
    if call.name not in ROOTED or call.handle:
        return None
    others = [each for each in range(len(program.groups[call.group][1])) if each != call.root]
    return _put(program, rank, place, replace(call, root=source.choice(others)))


def _stuck_before_polling(program: Program, source: random.Random, rank: int, place: int) -> list[Call] | None:
    calls = list(program.calls[rank])
    if calls[place].name != "store_add":
        return None
    return [*calls[:place], Call("sleep"), *calls[place:]]


def _another_operation(program: Program, source: random.Random, rank: int, place: int) -> list[Call] | None:
    call = program.calls[rank][place]
    if call.name not in _CALLS_OF_ALL:
        return None
    name = source.choice([each for each in _CALLS_OF_ALL if each != call.name])
    numel = 0 if name == "barrier" else call.numel or 1
    return _put(program, rank, place, replace(call, name=name, root=0 if name == "broadcast" else -1, numel=numel))


def _wrong_split(program: Program, source: random.Random, rank: int, place: int) -> list[Call] | None:
    call = program.calls[rank][place]
    if call.name != "all_to_all":
        return None
    counts, size = list(call.counts), len(call.counts) // 2
    own = program.groups[call.group][1].index(rank)
    which = source.choice([each for each in range(2 * size) if each % size != own])
    harm = 1 if which < size else -1  # more than the other end expects, or less than it sends
    counts[which] = max(0, counts[which] + source.choice((harm, harm, 2 * harm, -harm)))
    numel = sum(counts[:size])
    return _put(program, rank, place, replace(call, counts=tuple(counts), numel=numel))


def _put(program: Program, rank: int, place: int, call: Call) -> list[Call]:
    calls = program.calls[rank]
    return [*calls[:place], call, *calls[place + 1 :]]


_CHANGES: dict[str, _Change] = {
    change.__name__[1:].replace("_", " "): change
    for change in (
        _skip,
        _repeat,
        _swap,
        _another_tensor,
        _another_peer,
        _another_root,
        _stuck_before_polling,
        _another_operation,
        _wrong_split,
        _slipped_into_a_lock,
    )
}
