"""The last calls of this rank over all of its groups, in the order that it made them, each with its line.

Nothing is written while the rank goes on. Collectives and their stacks are in torch's Flight Recorder, which is read
once the rank stands still, or is to end. What the recorder does not have passes a kernel of the dispatcher: messages
(messages.py), and how many elements an all_to_all exchanges with each rank, which costs it some thirty microseconds.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tensorwire._ground.copies import not_copied

from ..model import MAX_CALLS, Call, Operation
from ..page import call_file, native
from ..page.recorder_entries import operation_info
from .flight_recorder import TORCH_FUNCTIONS, waiting_call
from .lines import is_torch, line_hash

if TYPE_CHECKING:
    from .messages import Messages
    from .process_groups import BackendGroups

EXCHANGES: Final = ("alltoall_", "alltoall_base_")  # names of c10d's
STILL_SECONDS: Final = 1.5  # a rank that makes and completes nothing for so long stands still
SHARE: Final = 0.002  # of the time that reading may take
_MAX_EXCHANGES: Final = 256
_ALL_TO_ALL: Final = ("all_to_all", "all_to_all_single")


class _AllToAll(NamedTuple):
    """What an all_to_all exchanges with each member; empty where all get the same."""

    called_ns: int  # on the wall's clock, as in the recorder, whose entry comes a moment later
    torch_name: str
    given: list[int]
    taken: list[int]


class Calls:
    """Remembers what the recorder does not have, and writes the file of calls.

    For one thread at a time, but the kernels.

    Args:
        page: beside which the file is.
        dumps: gives the ring of each recorder with stacks, pickled.
        messages: of this rank.
    """

    __reduce_ex__ = not_copied("kernels of this process", "attach in the other process")

    def __init__(self, page: Path, groups: BackendGroups, dumps: list[Callable[[], bytes]], messages: Messages) -> None:
        self._page = page
        self._groups = groups
        self._dumps = dumps
        self._messages = messages
        self._exchanges: deque[_AllToAll] = deque(maxlen=_MAX_EXCHANGES)
        self._roots: dict[tuple[str, int], int] = {}  # of operations that a thread was seen to wait in
        self._counts: tuple[int, ...] = ()
        self._since = 0.0
        self._not_before = 0.0
        self._is_written = True
        self._library: Any = None

    def follow(self, counts: tuple[int, ...]) -> None:
        """Write the file once these counts, of all that the rank makes and completes, stand still."""
        now = time.monotonic()
        if counts != self._counts:
            self._counts, self._since, self._is_written = counts, now, False
        elif not self._is_written and now - self._since >= STILL_SECONDS and now >= self._not_before:
            while len(self._roots) > MAX_CALLS:
                del self._roots[next(iter(self._roots))]
            self.write()

    def write(self) -> None:
        """Write the file now."""
        begin = time.monotonic()
        calls = sorted((*self._collectives(), *self._messages.last_calls()), key=lambda timed: timed[0])
        with suppress(OSError):
            call_file.write(self._page, [call for _, call in calls])
        self._is_written = True
        self._not_before = begin + (time.monotonic() - begin) / SHARE

    def register(self, counted_kernel: Callable[[str], Callable[..., Any]], is_timed: Callable[[], bool]) -> None:
        """Look at the arguments of each all_to_all. While `is_timed`, the kernel of `counted_kernel` runs too."""
        import torch.distributed

        library = torch.library.Library("c10d", "IMPL")
        for name in EXCHANGES:
            kernel = self._kernel(name, counted_kernel(name), is_timed)
            library.impl(name, kernel, "BackendSelect", with_keyset=True)
        self._library = library

    def _kernel(self, name: str, counted: Callable[..., Any], is_timed: Callable[[], bool]) -> Callable[..., Any]:
        import torch.distributed

        operator = getattr(torch.ops.c10d, name).default
        names = [argument.name for argument in operator._schema.arguments]
        group_at = names.index("process_group")
        # The arguments are a tensor for each rank, or the counts.
        taken_at, given_at = (0, 1) if name == "alltoall_" else (3, 4)
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        redispatch = operator.redispatch
        unbox_group = torch.distributed.ProcessGroup.unbox

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            with suppress(Exception):
                group = unbox_group(args[group_at]).group_name
                exchange = _AllToAll(time.time_ns(), group, _counts(args[given_at]), _counts(args[taken_at]))
                self._exchanges.append(exchange)
            return counted(keyset, *args, **kwargs) if is_timed() else redispatch(keyset & below, *args, **kwargs)

        return kernel

    def _collectives(self) -> list[tuple[int, Call]]:
        """The last ones of the recorders, each with its time on the monotonic clock."""
        found = []
        wall_ns = time.time_ns() - native.now()
        for dump in self._dumps:
            entries = [entry for entry in pickle.loads(dump())["entries"] if not entry["is_p2p"]]
            before: dict[str, int] = {}  # the time of each group's entry before
            for index, entry in enumerate(entries):
                with suppress(ValueError, KeyError, TypeError, IndexError):
                    torch_name, created_ns = entry["process_group"][0], int(entry["time_created_ns"])
                    since_ns, before[torch_name] = before.get(torch_name, 0), created_ns
                    if index >= len(entries) - MAX_CALLS:
                        call = self._call(entry, range(since_ns, created_ns), is_last=index == len(entries) - 1)
                        found.append((created_ns - wall_ns, call))
        return found

    def _call(self, entry: dict[str, Any], called_ns: range, *, is_last: bool) -> Call:
        """Args:
        called_ns: since the entry of the group before this one, and until this one.
        """
        torch_name, _ = entry["process_group"]
        backend, _, _ = entry["profiling_name"].partition(":")
        is_waiting = is_last and not entry["retired"] and entry["state"] != "completed"
        key = torch_name, int(entry["collective_seq_id"])
        if is_waiting:
            self._roots[key], _ = waiting_call(entry["profiling_name"], torch_name)
        stack = entry.get("frames", ())  # a Python frame each, the innermost first
        function = next((at["name"] for at in stack if at["filename"].endswith(TORCH_FUNCTIONS)), "")
        info = operation_info(entry, self._roots.get(key, native.NO_ROOT), function)
        name = native.OPERATIONS[info.operation]
        group = self._groups.known(torch_name, backend)
        if group is None:
            raise KeyError(torch_name)  # it is no more
        counts: tuple[int, ...] = ()
        if name in _ALL_TO_ALL:
            taken = sum(map(prod, entry["output_sizes"]))
            counts = self._exchanged(torch_name, called_ns, info.numel, taken, len(group.ranks))
        root = -1 if info.root == native.NO_ROOT else info.root
        operation = Operation(info.sequence, name, native.DTYPES[info.dtype], info.numel, root, info.signature)
        lines = ((at["filename"], at["name"], at["line"]) for at in stack)
        return Call(
            f"{group.id:016x}", operation, next((line_hash(*at) for at in lines if not is_torch(at[0])), 0), counts
        )

    def _exchanged(self, torch_name: str, called_ns: range, given: int, taken: int, size: int) -> tuple[int, ...]:
        """The counts of the exchange that a group began then; () where they do not fit the elements in all.

        A thread may be held after its kernel and before the recorder: that exchange has no entry yet.
        """
        for exchange in reversed(list(self._exchanges)):
            if exchange.torch_name == torch_name and exchange.called_ns in called_ns:
                both = _scaled(exchange.given, given, size), _scaled(exchange.taken, taken, size)
                return (*both[0], *both[1]) if all(len(counts) == size for counts in both) else ()
        return ()


def _counts(shares: list[Any]) -> list[int]:
    return [share if isinstance(share, int) else share.numel() for share in shares]


def _scaled(counts: list[int], numel: int, size: int) -> list[int]:
    """Counts in elements: torch takes them in rows of the first dimension, or none for equal parts."""
    if not counts:
        return [numel // size] * size
    rows = sum(counts)
    if rows == 0 or numel % rows:
        return counts if numel == rows else []
    return [count * (numel // rows) for count in counts]
