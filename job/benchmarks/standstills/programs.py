"""Random distributed programs that are well: each rank's calls of torch.distributed, in its order.

A program is made of blocks: a block adds its calls to the ranks that take part in it. All ranks follow the one order of
blocks, so that no program waits for itself. Blocks of the body are repeated, as the steps of a training are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WORLDS = (2, 3, 4, 8, 16)
DENSE = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all", "barrier", "reduce")
"""Collectives that no rank leaves before all have come; of reduce the root leaves last."""
ROOTED = ("broadcast", "reduce", "gather", "scatter")
MESSAGES = ("send", "recv", "isend", "irecv", "recv_any")
_SIZES = (1, 8, 64, 1000, 4096)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a rank. What does not apply has its default."""

    name: str  # torch.distributed's; or one of those that faults.py adds
    line: int = 0  # of the script: one number for each place of the program
    group: int = 0  # an index into the groups of the program
    numel: int = 0
    root: int = -1  # the root's rank in the group
    peer: int = -1  # the other end of a message: a global rank
    counts: tuple[int, ...] = ()  # all_to_all: elements for each member, then from each
    key: str = ""  # of the store
    handle: int = 0  # of a call that does not wait, and of the wait for it; 0: it waits
    step: int = 0  # of the training; 0 before and after it
    block: int = 0  # of the program; 0 before the first
    is_in_thread: bool = False  # made by another thread than the main one; it has a handle

    @property
    def is_message(self) -> bool:
        return self.name in MESSAGES

    @property
    def is_collective(self) -> bool:
        return self.name in DENSE or self.name in ROOTED


@dataclass(frozen=True, slots=True)
class Program:
    """The groups, of which the first is the world, each with its name and its members; and the calls of each rank."""

    groups: tuple[tuple[str, tuple[int, ...]], ...]
    calls: tuple[tuple[Call, ...], ...]

    @property
    def world_size(self) -> int:
        return len(self.calls)

    def members(self, call: Call, rank: int) -> tuple[int, ...]:
        """The ranks that take part in a call of this rank, as far as the call names them."""
        return (rank, call.peer) if call.is_message and call.peer >= 0 else self.groups[call.group][1]


@dataclass
class _Draft:
    """A program that is being made."""

    random: random.Random
    world_size: int
    calls: list[list[Call]] = field(init=False)
    groups: list[tuple[str, tuple[int, ...]]] = field(init=False)
    kinds: list[list[int]] = field(init=False)  # groups that share out ranks between them: "tp" of a mesh
    shared_line: int = 0  # a helper function through which all collectives are called; 0: there is none
    step: int = 0
    block: int = 0
    lines: int = 0
    handles: int = 0
    keys: int = 0

    def __post_init__(self) -> None:
        self.calls = [[] for _ in range(self.world_size)]
        self.groups = [("default_pg", tuple(range(self.world_size)))]
        self.kinds = [[0]]

    def add(self, rank: int, name: str, line: int, **values: object) -> None:
        is_shared = self.shared_line and name in ("all_reduce", "broadcast", "all_gather_into_tensor")
        line = self.shared_line if is_shared else line
        self.calls[rank].append(Call(name, line, step=self.step, block=self.block, **values))  # type: ignore[arg-type]

    def line(self) -> int:
        self.lines += 1
        return self.lines

    def handle(self) -> int:
        self.handles += 1
        return self.handles

    def numel(self) -> int:
        return self.random.choice(_SIZES)

    def ends(self) -> tuple[int, int]:
        """Two ranks."""
        one, other = self.random.sample(range(self.world_size), 2)
        return one, other


Block = Callable[[], None]
"""Adds its calls once more, with the same lines."""


def make(seed: int, *, worlds: Sequence[int] = WORLDS, steps: int = 4) -> Program:
    """The program of this seed, of a training of up to so many steps."""
    source = random.Random(f"program {seed}")
    draft = _Draft(source, source.choice(worlds))
    if source.random() < 0.2:
        draft.shared_line = draft.line()
    line = draft.line()
    for rank in range(draft.world_size):
        draft.add(rank, "init", line)
    _make_groups(draft)
    blocks = [source.choice(_MIX)(draft) for _ in range(source.randint(3, 7))]
    seldom = {1 + index for index in range(len(blocks)) if source.random() < 0.2}  # in every other step
    for draft.step in range(1, 1 + source.randint(2, steps)):
        for draft.block, block in enumerate(blocks, 1):
            if draft.block not in seldom or draft.step % 2 == 0:
                block()
    draft.step, draft.block, last = 0, len(blocks) + 1, draft.line()
    for rank in range(draft.world_size):
        draft.add(rank, "barrier", last)
    return Program(tuple(draft.groups), tuple(map(tuple, draft.calls)))


def _make_groups(draft: _Draft) -> None:
    """A mesh where the world has one, and an odd group at times: some members in no order of the others."""
    size, source = draft.world_size, draft.random
    if size in (4, 8, 16) and source.random() < 0.6:
        width = source.choice([w for w in (2, 4, 8) if w < size])
        rows = [tuple(range(first, first + width)) for first in range(0, size, width)]
        columns = [tuple(range(first, size, width)) for first in range(width)]
        for name, members in (("tp", rows), ("dp", columns)):
            _add_kind(draft, name, members)
    if size >= 3 and source.random() < 0.5:
        members = sorted(source.sample(range(size), source.randint(2, size - 1)))
        _add_kind(draft, "odd", [tuple(members)])


def _add_kind(draft: _Draft, name: str, groups: list[tuple[int, ...]]) -> None:
    kind = []
    line = draft.line()
    for members in groups:
        kind.append(len(draft.groups))
        draft.groups.append((name, members))
        for rank in range(draft.world_size):
            draft.add(rank, "new_group", line, group=kind[-1])
    draft.kinds.append(kind)


def _collective(draft: _Draft, names: Sequence[str] = ()) -> Block:
    name = draft.random.choice(names or ("all_reduce", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"))
    kind, line, numel = draft.random.choice(draft.kinds), draft.line(), draft.numel()
    root = draft.random.randrange(len(draft.groups[kind[0]][1])) if name in ROOTED else -1

    def block() -> None:
        for group in kind:
            for rank in draft.groups[group][1]:
                draft.add(rank, name, line, group=group, numel=0 if name == "barrier" else numel, root=root)

    return block


def _rooted(draft: _Draft) -> Block:
    return _collective(draft, ROOTED)


def _barrier(draft: _Draft) -> Block:
    return _collective(draft, ("barrier",))


def _buckets(draft: _Draft) -> Block:
    """As DistributedDataParallel reduces gradients: calls that do not wait, then the waits."""
    kind, line, wait = draft.random.choice(draft.kinds), draft.line(), draft.line()
    sizes = [draft.numel() for _ in range(draft.random.randint(2, 3))]

    def block() -> None:
        for group in kind:
            for rank in draft.groups[group][1]:
                handles = [draft.handle() for _ in sizes]
                for handle, numel in zip(handles, sizes, strict=True):
                    draft.add(rank, "all_reduce", line, group=group, numel=numel, handle=handle)
                for handle in handles:
                    draft.add(rank, "wait", wait, handle=handle)

    return block


def _all_to_all(draft: _Draft) -> Block:
    kind, line = draft.random.choice(draft.kinds), draft.line()
    size = len(draft.groups[kind[0]][1])
    table = [[draft.random.randint(1, 9) for _ in range(size)] for _ in range(size)]

    def block() -> None:
        for group in kind:
            for own, rank in enumerate(draft.groups[group][1]):
                counts = (*table[own], *(row[own] for row in table))
                draft.add(rank, "all_to_all", line, group=group, numel=sum(table[own]), counts=counts)

    return block


def _message(draft: _Draft) -> Block:
    source, target = draft.ends()
    lines, numel = (draft.line(), draft.line()), draft.numel()

    def block() -> None:
        draft.add(source, "send", lines[0], peer=target, numel=numel)
        draft.add(target, "recv", lines[1], peer=source, numel=numel)

    return block


def _pipeline(draft: _Draft) -> Block:
    """Stages: activations forwards, gradients backwards, for each of a few micro-batches."""
    stages = range(draft.world_size)
    batches, numel = draft.random.randint(1, 2), draft.numel()
    lines = [draft.line() for _ in range(4)]

    def block() -> None:
        for way in (1, -1):
            receive, send = lines[:2] if way == 1 else lines[2:]
            for _ in range(batches):
                for stage in stages:
                    if stage - way in stages:
                        draft.add(stage, "recv", receive, peer=stage - way, numel=numel)
                    if stage + way in stages:
                        draft.add(stage, "send", send, peer=stage + way, numel=numel)

    return block


def _ring(draft: _Draft) -> Block:
    """Each sends to the next and receives from the one before, without waiting in between."""
    size, numel = draft.world_size, draft.numel()
    lines = [draft.line() for _ in range(4)]

    def block() -> None:
        for rank in range(size):
            handles = draft.handle(), draft.handle()
            draft.add(rank, "isend", lines[0], peer=(rank + 1) % size, numel=numel, handle=handles[0])
            draft.add(rank, "irecv", lines[1], peer=(rank - 1) % size, numel=numel, handle=handles[1])
            for handle, line in zip(handles, lines[2:], strict=True):
                draft.add(rank, "wait", line, handle=handle)

    return block


def _server(draft: _Draft) -> Block:
    """One rank takes a message from any other, as many as there are, and answers all."""
    server = draft.random.randrange(draft.world_size)
    numel = draft.numel()
    lines = [draft.line() for _ in range(4)]
    others = [rank for rank in range(draft.world_size) if rank != server]

    def block() -> None:
        for rank in others:
            draft.add(rank, "send", lines[0], peer=server, numel=numel)
            draft.add(server, "recv_any", lines[1], numel=numel)
        for rank in others:
            draft.add(server, "send", lines[2], peer=rank, numel=numel)
            draft.add(rank, "recv", lines[3], peer=server, numel=numel)

    return block


def _key(draft: _Draft) -> Block:
    """One rank sets a key of the store, for which the others wait."""
    owner = draft.random.randrange(draft.world_size)
    lines = draft.line(), draft.line()

    def block() -> None:
        draft.keys += 1
        for rank in range(draft.world_size):
            name, line = ("store_set", lines[0]) if rank == owner else ("store_get", lines[1])
            draft.add(rank, name, line, key=str(draft.keys))

    return block


def _rendezvous(draft: _Draft) -> Block:
    """A barrier made by hand: each adds to a counter of the store, and looks until all have."""
    lines = draft.line(), draft.line()

    def block() -> None:
        draft.keys += 1
        for rank in range(draft.world_size):
            for name, line in zip(("store_add", "store_poll"), lines, strict=True):
                draft.add(rank, name, line, key=f"counter {draft.keys}")

    return block


def _thread(draft: _Draft) -> Block:
    """A thread saves, with a collective of its own in the group in which the main thread makes one meanwhile."""
    kind, numel = draft.random.choice(draft.kinds), draft.numel()
    first, second = draft.random.sample(("all_reduce", "all_gather_into_tensor", "barrier", "broadcast"), 2)
    lines = [draft.line() for _ in range(3)]

    def add(rank: int, name: str, line: int, group: int, **more: object) -> None:
        values = {"numel": 0 if name == "barrier" else numel, "root": 0 if name == "broadcast" else -1}
        draft.add(rank, name, line, group=group, **values, **more)

    def block() -> None:
        for group in kind:
            for rank in draft.groups[group][1]:
                handle = draft.handle()
                add(rank, first, lines[0], group, handle=handle, is_in_thread=True)
                add(rank, second, lines[1], group)
                draft.add(rank, "wait", lines[2], handle=handle)

    return block


def _lock(draft: _Draft) -> Block:
    """Some ranks take a file lock in turn, and all meet after it at times."""
    size, source = draft.world_size, draft.random
    ranks = source.choice((range(size), [source.randrange(size)], sorted(source.sample(range(size), size - 1))))
    lines, meets = [draft.line() for _ in range(3)], source.random() < 0.7
    key = f"lock {lines[0]}"

    def block() -> None:
        for rank in range(size):
            if rank in ranks:
                draft.add(rank, "lock", lines[0], key=key)
                draft.add(rank, "unlock", lines[1], key=key)
            if meets:
                draft.add(rank, "barrier", lines[2])

    return block


def _monitored(draft: _Draft) -> Block:
    line = draft.line()

    def block() -> None:
        for rank in range(draft.world_size):
            draft.add(rank, "monitored_barrier", line)

    return block


_MIX: tuple[Callable[[_Draft], Block], ...] = (
    *(_collective,) * 6, *(_rooted,) * 3, *(_barrier,) * 2, *(_buckets,) * 3, *(_all_to_all,) * 2, *(_message,) * 3,
    *(_pipeline,) * 2, _ring, _ring, _server, _key, _monitored, _lock, _lock,
    _rendezvous, _thread,
)  # fmt: skip
