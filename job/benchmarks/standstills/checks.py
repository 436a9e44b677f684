"""Faults that ranks see in what they exchange, and fail of: with words that name a rank, another one than themselves
or a reference, or none; and faults of what all ranks read, which each of them fails of.

The texts are torch's, those of libraries, and such as scripts write.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .acts import Fault
from .programs import Call

if TYPE_CHECKING:
    import random

    from .programs import Program

KINDS = ("named by others", "unlike a reference", "words that name none", "one speaks for another", "failed alike")

_EACH_NAMES = (
    "RuntimeError: DDP expects same model across all ranks, but Rank {own} has {n} params, while rank {other} has "
    "inconsistent {m} params.",
    "RuntimeError: Detected mismatch between collectives on ranks. Rank {own} is running collective: "
    "CollectiveFingerPrint(SequenceNumber={n}, OpType=ALLREDUCE), but Rank {other} is running collective: "
    "CollectiveFingerPrint(SequenceNumber={n}, OpType=BROADCAST).",
    "ValueError: [rank {own}] batch of {n} rows, but rank {other} has {m}",
)
_ALL_NAME = (
    "CheckpointException: CheckpointException ranks:dict_keys([{other}]) missing key model.{n} (RANK {other})",
    "ExchangeError: rank {other} sends another tensor, or has another codec for it",
    "RuntimeError: worker of rank {other} failed in step {n}",
)
_REFERENCES = (
    "RuntimeError: [{own}]: params[{n}] in this process with sizes [{m}] appears not to match sizes of the same param "
    "in process 0.",
    "ValueError: rank {own}: vocabulary of {n} entries, rank 0 has {m}",
    "AssertionError: config of rank {own} is not that of rank 0",
)
_NAME_NONE = (
    "AssertionError: weights of {n} bytes differ",
    "RuntimeError: expected a checksum of {n}, got {m}",
    "ValueError: lora rank {n} is too small",
)
_CHECKS = (
    "ValueError: expected {n} rows, got {m}",
    "AssertionError: loss is not finite",
    "RuntimeError: checksum {n} of the weights does not match {m}",
    "ValueError: rank {own}: sums {n} and {m} differ",
)
_OF_ALL = (
    "OSError: [Errno 28] No space left on device: '/data/shard-{n}'",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/{own}/index-{n}'",
    "RuntimeError: PytorchStreamReader failed reading zip archive: invalid header or archive is corrupted",
    "ValueError: no sample of epoch {n}",
)


def befall(program: Program, source: random.Random, kind: str) -> tuple[Program, Fault] | None:
    """See faults.befall."""
    culprit, world = source.randrange(program.world_size), range(program.world_size)
    others = [rank for rank in world if rank != culprit]
    n, m = source.randrange(10, 99), source.randrange(100, 999)
    exchange, by, culprits = "all_gather_into_tensor", dict[int, str](), (culprit,)
    if kind == "named by others":
        each = source.choice((*_EACH_NAMES, *_ALL_NAME))
        named = dict.fromkeys(world, culprit) | ({culprit: others[0]} if each in _EACH_NAMES else {})
        by = {rank: each.format(own=rank, other=named[rank], n=n + rank, m=n) for rank in world}
    elif kind == "unlike a reference":
        exchange, each = "broadcast", source.choice(_REFERENCES)
        by = {rank: each.format(own=rank, n=n, m=m) for rank in (others if culprit == 0 else [culprit])}
    elif kind == "words that name none":
        each, step = source.choice(_NAME_NONE), source.choice((0, 1))
        by = {rank: each.format(own=rank, n=n + step * rank, m=m) for rank in world}
    elif kind == "one speaks for another":
        speaker = source.choice(others)
        by = {speaker: source.choice(_CHECKS).format(own=speaker, n=n, m=m)}
    else:
        texts = source.choice(([source.choice(_OF_ALL)], _OF_ALL))  # one for all, or several
        by = {rank: source.choice(texts).format(own=rank, n=n + rank) for rank in world}
        culprits = ()
    made = _number_of_exchanges(program)
    place = "words" if kind in ("named by others", "unlike a reference") else "unseen" if culprits else "nobody"
    told = Fault(kind, culprits, place, f"{kind}: {next(iter(by.values()))}")
    return _with_a_check(program, source.randrange(made), exchange, by), told


def _is_of_all(call: Call) -> bool:
    return call.is_collective and call.group == 0 and not call.handle


def _number_of_exchanges(program: Program) -> int:
    """How many collectives of all ranks there are: the last barrier is one."""
    return sum(map(_is_of_all, program.calls[0]))


def _with_a_check(program: Program, number: int, exchange: str, by: dict[int, str]) -> Program:
    """Before the collective of all ranks of this number they exchange something, and these fail of it."""
    calls = []
    for rank, own in enumerate(program.calls):
        place = [index for index, call in enumerate(own) if _is_of_all(call)][number]
        root = 0 if exchange == "broadcast" else -1
        added = [Call(exchange, numel=1, root=root, block=own[place].block, step=own[place].step)]
        if rank in by:
            added.append(Call("die", key=by[rank]))
        calls.append((*own[:place], *added, *own[place:]))
    return replace(program, calls=tuple(calls))
