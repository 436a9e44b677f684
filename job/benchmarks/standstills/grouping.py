"""Faults of making groups: in another order, of other members, or only those that a rank is in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .acts import Fault
from .programs import ROOTED

if TYPE_CHECKING:
    import random

    from .programs import Call, Program

KINDS = ("groups in another order", "a group of other members", "groups of their own")


def befall(program: Program, source: random.Random, kind: str) -> tuple[Program, Fault] | None:
    """See faults.befall."""
    rank = source.randrange(program.world_size)
    made = [index for index, call in enumerate(program.calls[rank]) if call.name == "new_group"]
    if kind == "groups of their own":
        return _their_own(program)
    is_order = kind == "groups in another order"
    if len(made) < 1 + is_order:
        return None
    changed = (_in_another_order if is_order else _of_other_members)(program, source, rank, made)
    if changed is None:
        return None
    groups, calls, what = changed
    own = (*program.calls[:rank], calls, *program.calls[rank + 1 :])
    return replace(program, groups=groups, calls=own), Fault(kind, (rank,), "group", f"rank {rank} {what}")


_Changed = tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple["Call", ...], str]


def _in_another_order(program: Program, source: random.Random, rank: int, made: list[int]) -> _Changed | None:
    """Two change places, or one that this rank is not in is left out."""
    calls = list(program.calls[rank])
    others = [index for index in made[:-1] if rank not in program.groups[calls[index].group][1]]
    if others and source.random() < 0.3:
        left_out = calls.pop(source.choice(others))
        return program.groups, tuple(calls), f"does not make group {left_out.group}"
    one, other = sorted(source.sample(made, 2))
    calls[one], calls[other] = calls[other], calls[one]
    return program.groups, tuple(calls), f"makes group {calls[one].group} before group {calls[other].group}"


def _of_other_members(program: Program, source: random.Random, rank: int, made: list[int]) -> _Changed | None:
    """The list lacks one, or has one more."""
    own = {program.calls[rank][index].group for index in made}
    index = source.choice(sorted(own))
    name, members = program.groups[index]
    if rank not in members:
        return None
    others, rest = [each for each in members if each != rank], set(range(program.world_size)).difference(members)
    if rest and source.random() < 0.5:
        list_of = tuple(sorted((*members, source.choice(sorted(rest)))))
    else:
        left_out = source.choice(others)
        list_of = tuple(each for each in members if each != left_out)
    calls = []
    for call in program.calls[rank]:
        if call.group != index:
            calls.append(call)
            continue
        root = members[call.root] if call.name in ROOTED else rank
        if root not in list_of or call.counts:
            return None  # the script would fail of it
        calls.append(replace(call, group=len(program.groups), root=list_of.index(root) if call.root >= 0 else -1))
    groups = (*program.groups, (name, list_of))
    return groups, tuple(calls), f"makes group {index} of {list(list_of)} and not of {list(members)}"


def _their_own(program: Program) -> tuple[Program, Fault] | None:
    """All leave out the groups that they are not in. No rank is to blame for what the script does on all."""
    calls = tuple(
        tuple(call for call in own if call.name != "new_group" or rank in program.groups[call.group][1])
        for rank, own in enumerate(program.calls)
    )
    if calls == program.calls:
        return None
    return replace(program, calls=calls), Fault("groups of their own", (), "nobody", "ranks make only what they are in")
