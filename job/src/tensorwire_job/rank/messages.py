"""Counts the messages of this rank, how long it waits for them, and from which rank.

gloo tells the Flight Recorder nothing of send and recv, so a rank that waits for one would seem to be in no operation.
Nor does a work name its peer. So these two operations pass a kernel of the dispatcher all the time, as all do while
they are timed (operation_timing.py): isend, irecv, batch_isend_irecv and the pipelines of torch.distributed.pipelining
too. The work that they return notes how long it is waited for. That costs a message thirty microseconds or so,
most of it torch's detour through Python, and costs other operations nothing.

A message is counted when it is called, so the counts of both ends grow alike even if one of them never waits. The first
messages may have been made before the probe was there.

Messages between accelerators are not seen here; the NCCL plugin sees them. A receive from any source is only counted,
because a work of ours could not name its source. The stack shows a rank that waits in one (activity.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tensorwire._ground.copies import not_copied

from ..model import MAX_CALLS, Call, Operation
from ..page import native
from ..page.recorder_entries import signature
from .flight_recorder import OPEN_SECONDS
from .lines import caller
from .process_groups import pair_id

if TYPE_CHECKING:
    from .lines import Line
    from .process_groups import BackendGroup, BackendGroups

OPERATIONS: Final = {"send": "send", "recv_": "recv", "recv_any_source_": ""}  # by name of c10d's; "": only counted
_ENDS: Final = {"send": "dst", "recv_": "src"}  # the argument that has the peer
_NO_PEER: Final = -1
_MAX_SLOTS: Final = 34  # of the page in use: from here on messages have none before a wait for them, groups go first


class _Way:
    """The messages that go the same way between this rank and another one of a group."""

    __slots__ = ("count", "description", "group", "operation", "peer", "rank", "shown", "slot", "torch_name", "waited")

    def __init__(self, torch_name: str, description: str, operation: str, rank: int, peer: int) -> None:
        self.torch_name = torch_name
        self.description = description
        self.operation = operation
        self.rank = rank  # within the group
        self.peer = peer
        self.count = 0
        self.waited = 0  # nanoseconds, in waits that are over
        self.group: BackendGroup | None = None  # once it has a slot
        self.slot = -1
        self.shown: tuple[int, int, int] = (0, 0, 0)  # what the page says: count, time waited, open message

    @property
    def ends(self) -> tuple[int, int]:
        """The ranks that send and receive, within the group."""
        return (self.rank, self.peer) if self.operation == "send" else (self.peer, self.rank)


class _ThreadWait(NamedTuple):
    """A thread's wait for a message."""

    way: _Way
    sequence: int
    dtype: Any
    numel: int
    tag: int
    since: int


class _Message(NamedTuple):
    """A message that was called."""

    way: _Way
    sequence: int
    dtype: Any
    numel: int
    tag: int
    time_ns: int
    line: Line | None


class Messages:
    """Writes this rank's messages to the page: :meth:`poll` is for one thread, the rest for all."""

    __reduce_ex__ = not_copied("kernels and the page of this process", "attach in the other process")

    def __init__(self, handle: int, groups: BackendGroups) -> None:
        self._handle = handle
        self._groups = groups
        self._ways: dict[tuple[str, str, int], _Way] = {}
        self._waits: dict[int, _ThreadWait] = {}  # by thread
        self._calling: set[int] = set()  # threads
        self._last: deque[_Message] = deque(maxlen=MAX_CALLS)
        self._num_marked = 0
        self.num_completed = 0  # messages that a thread has waited for
        self._library: Any = None

    def register(self, counted_kernel: Callable[[str], Callable[..., Any]], is_timed: Callable[[], bool]) -> None:
        """Have messages pass this and, while `is_timed`, the kernel of `counted_kernel` for their operation."""
        import torch.distributed

        library = torch.library.Library("c10d", "IMPL")
        for name, operation in OPERATIONS.items():
            kernel = self._kernel(name, operation, counted_kernel(name), is_timed)
            library.impl(name, kernel, "BackendSelect", with_keyset=True)
        self._library = library

    def poll(self) -> None:
        """Show counts, the time waited, and the message of a thread that has waited for a while."""
        # A wait may end meanwhile. It is then left out this time, which is better than counted twice.
        waited = {key: way.waited for key, way in list(self._ways.items())}
        num_completed, has_shown = self.num_completed, False
        now = monotonic_ns()
        waiting: dict[_Way, int] = {}
        longest: dict[_Way, _ThreadWait] = {}
        for wait in list(self._waits.values()):
            waiting[wait.way] = waiting.get(wait.way, 0) + max(now - wait.since, 0)
            if now - wait.since >= 1e9 * OPEN_SECONDS:
                longest[wait.way] = min(wait, longest.get(wait.way, wait), key=lambda each: each.since)
        for key, nanoseconds in waited.items():
            way = self._ways[key]
            if way.group is not None and self._groups.known(way.torch_name, "gloo") is not way.group:
                del self._ways[key]  # of a group that was destroyed
            else:
                has_shown |= self._show(way, nanoseconds + waiting.get(way, 0), longest.get(way))
        if num_completed != self._num_marked:
            self._num_marked = num_completed
            if not has_shown:
                self._mark_progress()

    def num_collectives(self, torch_name: str) -> int | None:
        """How many operations a group has made that are no messages, by torch's number, which counts both.

        None where it has no messages, -1 while a thread makes one.
        """
        ways = [way for way in list(self._ways.values()) if way.torch_name == torch_name]
        if not ways:
            return None
        count = sum(way.count for way in ways)
        number = self._groups.last_number(torch_name)
        if number is None or self._calling or count != sum(way.count for way in ways):
            return -1
        return max(number - count, -1)

    @property
    def num_called(self) -> int:
        """Messages so far."""
        return sum(way.count for way in list(self._ways.values()))

    def last_calls(self) -> list[tuple[int, Call]]:
        """The last messages, those from any source among them, each with its time on the monotonic clock."""
        found = [(message.time_ns, self._call(message)) for message in list(self._last)]
        return [(time_ns, call) for time_ns, call in found if call is not None]

    def _call(self, message: _Message) -> Call | None:
        way, line = message.way, message.line
        group = self._groups.known(way.torch_name, "gloo")
        if group is None:
            return None
        dtype = _dtype_code(message.dtype)
        operation = Operation(
            message.sequence,
            way.operation or "recv",
            native.DTYPES[dtype],
            message.numel,
            -1 if way.peer == _NO_PEER else _global_rank(group, way.peer),
            signature(message.tag, dtype, message.numel),
        )
        number = 0 if way.peer == _NO_PEER else pair_id(group, *way.ends)
        at = native.line_hash(line.code.co_filename, line.code.co_name, line.number) if line else 0
        return Call(f"{number:016x}", operation, at)

    def _show(self, way: _Way, waited: int, wait: _ThreadWait | None) -> bool:
        """Whether the page has something new."""
        if way.peer == _NO_PEER:
            way.group = way.group or self._groups.find(way.torch_name, way.description, "gloo")
            return False
        state = way.count, waited, wait.sequence if wait is not None else 0
        if state == way.shown or not self._has_slot(way, wait is not None):
            return False
        way.shown = state
        self._write(way, wait)
        return True

    def _has_slot(self, way: _Way, is_waited_for: bool) -> bool:
        if way.group is None:
            if self._groups.num_slots >= _MAX_SLOTS and not is_waited_for:
                return False
            way.group = self._groups.find(way.torch_name, way.description, "gloo")
            way.slot = self._groups.pair(way.group, *way.ends)
        return True

    def _write(self, way: _Way, wait: _ThreadWait | None) -> None:
        assert way.group is not None
        count, waited, _ = way.shown
        info = native.OperationInfo(
            sequence=count,
            numel=-1,
            operation=native.OPERATIONS.index(way.operation),
            root=_global_rank(way.group, way.peer),
        )
        if wait is not None:
            info.sequence, info.numel, info.dtype = wait.sequence, wait.numel, _dtype_code(wait.dtype)
            info.signature = signature(wait.tag, info.dtype, wait.numel)
        native.messages(self._handle, way.slot, count, waited, info, wait.since if wait is not None else 0)

    def _mark_progress(self) -> None:
        """Messages of pairs without a slot were completed: one that has a slot moves in their place, and back."""
        way = next((each for each in self._ways.values() if each.slot >= 0 and each.shown[2] == 0), None)
        if way is None:
            return
        count, waited, _ = way.shown
        for shown in (count + 1, count):
            way.shown = shown, waited, 0
            self._write(way, None)

    def _kernel(
        self, name: str, operation: str, counted: Callable[..., Any], is_timed: Callable[[], bool]
    ) -> Callable[..., Any]:
        """The kernel that the dispatcher calls. Only an error of the operation itself leaves it."""
        import torch.distributed

        operator = getattr(torch.ops.c10d, name).default
        names = [argument.name for argument in operator._schema.arguments]
        group_at = names.index("process_group")
        peer_at = names.index(_ENDS[name]) if name in _ENDS else None
        tag_at = names.index("tag")
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        redispatch = operator.redispatch
        unbox_group = torch.distributed.ProcessGroup.unbox
        ways, calling = self._ways, self._calling

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            calling.add(thread)
            try:
                result = counted(keyset, *args, **kwargs) if is_timed() else redispatch(keyset & below, *args, **kwargs)
            except BaseException:
                calling.discard(thread)
                raise
            try:
                (tensor,) = args[0]
                if not tensor.is_cpu:
                    return result
                group = unbox_group(args[group_at])
                peer = _NO_PEER if peer_at is None else args[peer_at]
                key = group.group_name, operation, peer
                way = ways.get(key)
                if way is None:
                    way = ways[key] = _Way(group.group_name, group.group_desc, operation, group.rank(), peer)
                way.count += 1
                called = tensor.dtype, tensor.numel(), args[tag_at]
                self._last.append(_Message(way, way.count, *called, monotonic_ns(), caller()))
                return self._watched(result, way, *called) if operation else result
            except Exception:
                return result
            finally:
                calling.discard(thread)

        return kernel

    def _watched(self, boxed: Any, way: _Way, dtype: Any, numel: int, tag: int) -> Any:
        """A work in place of gloo's, which knows no more of its end before it was waited for."""
        from torch._C._distributed_c10d import PythonCallbackWork, Work

        work: Any = Work.unbox(boxed)
        waits, sequence = self._waits, way.count

        def wait(timeout: Any) -> bool:
            thread = threading.get_ident()
            since = monotonic_ns()
            waits[thread] = _ThreadWait(way, sequence, dtype, numel, tag, since)
            try:
                done: bool = work.wait(timeout) if timeout else work.wait()
                self.num_completed += 1
                return done
            finally:
                waits.pop(thread, None)
                way.waited += monotonic_ns() - since

        return PythonCallbackWork(wait).boxed()


def _dtype_code(dtype: Any) -> int:
    name = str(dtype).removeprefix("torch.")
    return native.DTYPES.index(name) if name in native.DTYPES else 0


def _global_rank(group: BackendGroup, rank: int) -> int:
    return group.ranks[rank] if group.ranks else rank
