"""The process groups of this rank, and their slots in its page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from tensorwire._ground.copies import not_copied

from ..members import MAX_DIMENSIONS, grid_of
from ..page import native
from ..page.recorder_entries import shown_name

_NAME: Final = 0xFFFFFFFF << 32  # the half of an id that all groups of one name have, see ProcessGroup
_MAKES: Final = "_new_group_with_tag"  # torch's function
TORCH_FUNCTIONS: Final = "distributed_c10d.py"
_MAX_UNUSED: Final = 32  # groups in the page that have a slot before their first operation: some are never used


_Named = tuple[str, str, str, Sequence[int]]
"""torch's name of a group, its description, its backend, and its ranks where torch does not have it yet."""


@dataclass(slots=True)
class BackendGroup:
    """A process group on one backend."""

    id: int
    slot: int  # -1: the page has no room for it
    name: str
    ranks: Sequence[int]  # global ones, by their rank in the group; empty if torch does not tell
    torch_name: str
    pairs: set[int] = field(default_factory=set)  # of ranks that have sent something in it


class BackendGroups:
    """Finds groups by torch's name of them. For the threads of the rank: the GIL is lock enough."""

    __reduce_ex__ = not_copied("the page of this process", "attach in the other process")

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._groups: dict[tuple[str, str], BackendGroup] = {}
        self._pairs: dict[int, int] = {}  # slots of pairs of ranks; -1: the page has no room
        self._state: tuple[int, ...] = ()  # of torch's tables, as they were read last
        self._is_making = False
        self._has_retired = False  # some groups are no more

    def poll(self, *, is_making: bool = False) -> None:
        """Show groups and members as soon as they exist, in the order in which they were made: a rank may wait in a
        group that others never use.

        Args:
            is_making: this rank makes one, though torch's tables do not show it.
        """
        from torch.distributed.distributed_c10d import _world

        state = id(_world.default_pg), _world.group_count, len(_world.pg_group_ranks)
        if state == self._state and not (self._is_making or is_making):
            return
        made = _in_making()
        # A number stands for all groups that this rank is not in.
        present = [each for each in list(_world.pg_group_ranks) if not isinstance(each, int)]
        # Groups of another world may have the same names.
        kept = {name for name, *_ in made} | {each.group_name for each in present if state[:1] == self._state[:1]}
        self._retire(kept)
        self._state, self._is_making = state, bool(made)
        configurations = _world.pg_backend_config
        named: list[_Named] = [
            (each.group_name, each.group_desc, _main_backend(configurations.get(each, "")), ()) for each in present
        ]
        for each in (*named, *made):
            if len(self._groups) >= _MAX_UNUSED:
                break
            self.find(*each)

    def find(self, torch_name: str, description: str, backend: str, ranks: Sequence[int] = ()) -> BackendGroup:
        """The group that the Flight Recorder calls by these names.

        Args:
            ranks: of a group that torch does not have yet.
        """
        group = self._groups.get((torch_name, backend))
        if group is None:
            ranks = ranks or _ranks(torch_name)
            # Ranks of one job may use one name for different groups; their members tell those apart.
            identity = f"{backend}|{torch_name}|{','.join(map(str, ranks))}"
            number = native.hash64(torch_name.encode()) & _NAME | native.hash64(identity.encode()) & ~_NAME or 1
            group = BackendGroup(number, -1, shown_name(torch_name, description), ranks, torch_name)
            self._show(group)
            if ranks:
                self._groups[torch_name, backend] = group
            else:  # it came and went between two looks
                native.retire(self._handle, group.slot)
        return group

    def _show(self, group: BackendGroup) -> None:
        group.slot = native.slot(self._handle, group.id, group.name.encode(), len(group.ranks))
        _show_members(self._handle, group.slot, group.ranks)

    def pair(self, group: BackendGroup, source: int, target: int) -> int:
        """The slot of the messages from one rank of a group to another."""
        number = pair_id(group, source, target)
        slot = self._pairs.get(number)
        if slot is None:
            slot = self._pairs[number] = native.pair(self._handle, number, group.name.encode())
            group.pairs.add(number)
        return slot

    def known(self, torch_name: str, backend: str) -> BackendGroup | None:
        """The group that has this name at present, as far as it was looked for."""
        return self._groups.get((torch_name, backend))

    def name_of(self, entry: Any) -> tuple[str, str]:
        """torch's name of the group of an entry of the Flight Recorder, and its description; "" where none is known.

        Where torch checks all calls (TORCH_DISTRIBUTED_DEBUG=DETAIL), gloo knows no names: it numbers groups as they
        are made, and each has a second one, whose entries are comparisons of what ranks called.
        """
        name, description = entry["process_group"]
        if not name:
            number, is_second = divmod(int(entry["pg_id"]), 2)
            made = [] if is_second or self._has_retired else _checked_groups()
            if number < len(made):
                return made[number]
            self._has_retired |= not is_second  # one was no more before it was seen: the numbers tell nothing
        return name, description

    def last_number(self, torch_name: str) -> int | None:
        """torch's number of a group's last operation of any kind; None where it is not known."""
        from torch._C._distributed_c10d import _resolve_process_group

        try:
            number: int | None = sequence_number(_resolve_process_group(torch_name))
        except (KeyError, RuntimeError, ValueError):  # destroyed meanwhile
            return None
        return number

    @property
    def num_slots(self) -> int:
        """The number of the page's slots that are in use."""
        return len(self._groups) + len(self._pairs)

    def _retire(self, names: set[str]) -> None:
        """Let others have the slots of groups that have none of these names, once they need the room."""
        for key, group in list(self._groups.items()):
            if group.torch_name in names:
                continue
            del self._groups[key]
            self._has_retired = True
            for slot in (group.slot, *(self._pairs.pop(number) for number in group.pairs)):
                native.retire(self._handle, slot)
        for group in self._groups.values():
            if group.slot < 0:  # there was no room
                self._show(group)
        slots = [*(each.slot for each in self._groups.values()), *self._pairs.values()]
        lack = any(slot < 0 for slot in slots)
        native.set_flag(self._handle, native.OVERFLOW, lack)


def _in_making() -> list[_Named]:
    """What threads are about to make."""
    found = []
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_name == _MAKES and frame.f_code.co_filename.endswith(TORCH_FUNCTIONS):
                values = frame.f_locals
                name, ranks = values.get("group_name", ""), values.get("ranks")
                if name and ranks and values.get("global_rank") in ranks:
                    backend = _main_backend(values.get("backend", ""))
                    found.append((name, values.get("group_desc") or "", backend, ranks))
            frame = frame.f_back
    return found


def _checked_groups() -> list[tuple[str, str]]:
    """The names and descriptions of all groups, in the order of making, where torch checks the calls of all on gloo."""
    from torch.distributed import DebugLevel, get_debug_level
    from torch.distributed.distributed_c10d import _world

    made = list(_world.pg_map)
    are_of_gloo = all(_main_backend(_world.pg_backend_config.get(each, "")) == "gloo" for each in made)
    if get_debug_level() != DebugLevel.DETAIL or not are_of_gloo:
        return []
    return [(each.group_name, each.group_desc) for each in made]


def pair_id(group: BackendGroup, source: int, target: int) -> int:
    """The id of the messages from one rank of a group to another, the same at both ends."""
    return native.hash64(f"{group.id}|{source}>{target}".encode()) or 1


def _show_members(handle: int, slot: int, ranks: Sequence[int]) -> None:
    grid = grid_of(ranks)
    if grid is None:
        return
    first, dimensions = grid
    padded = [(1, 1)] * (MAX_DIMENSIONS - len(dimensions)) + list(dimensions)
    extents, strides = zip(*padded, strict=True)
    native.members(handle, slot, native.Members(first, strides, extents))


def _main_backend(configuration: str) -> str:
    """The backend that training uses: nccl in "cpu:gloo,cuda:nccl"."""
    backends = [part.rpartition(":")[2] for part in str(configuration).split(",")]
    return next((backend for backend in backends if backend != "gloo"), "gloo")


def _ranks(torch_name: str) -> list[int]:
    import torch.distributed
    from torch._C._distributed_c10d import _resolve_process_group

    try:
        group: Any = _resolve_process_group(torch_name)
        return list(torch.distributed.get_process_group_ranks(group))
    except (KeyError, RuntimeError, ValueError):  # destroyed meanwhile
        return []


def sequence_number(process_group: Any) -> Any:
    """torch's number of the group's last operation; None where the backend keeps none."""
    try:
        return process_group._get_sequence_number_for_group()
    except RuntimeError:
        return None
