"""Which messages this rank waits for, while nothing times them.

gloo tells the Flight Recorder nothing of send and recv, so that a rank which waits for one would look like one that is
in no operation at all; nor does a work tell whom it is from. So these two operations pass a kernel of the dispatcher
all the time, as all do while they are timed (operation_timing.py): isend, irecv, batch_isend_irecv and the pipelines
of torch.distributed.pipelining too. The work that they give notes who waits for it. That costs a message thirty
microseconds or so, and nothing else anything.

Not seen: receiving from any source, and messages between accelerators (the NCCL plugin sees those).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..page import native
from ..page.recorder_entries import signature
from .flight_recorder import OPEN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .process_groups import Groups, Pair

OPERATIONS: Final = {"send": "send", "recv_": "recv"}  # by name of c10d's


class _Message(NamedTuple):
    torch_name: str
    description: str
    operation: str
    rank: int  # within the group
    peer: int
    dtype: str
    numel: int


class _Wait:
    """Of one thread for one message."""

    __slots__ = ("message", "pair", "since")

    def __init__(self, message: _Message) -> None:
        self.message = message
        self.since = native.now()
        self.pair: Pair | None = None  # where it is shown


class Messages:
    """Writes to the page what threads of this rank wait for: :meth:`poll` is for one thread, the rest for all."""

    def __init__(self, handle: int, groups: Groups) -> None:
        self._handle = handle
        self._groups = groups
        self._waits: dict[int, _Wait] = {}  # by thread
        self._shown: dict[int, _Wait] = {}
        self._last: _Message | None = None  # that was waited for and came
        self._mark: Pair | None = None
        self._num_marked = 0
        self.num_completed = 0  # messages that a thread has waited for
        self._library: Any = None

    def register(self, timed_kernel: Callable[[str], Callable[..., Any]], is_timed: Callable[[], bool]) -> None:
        """Have messages pass this; while `is_timed`, the kernel that `timed_kernel` gives for an operation of c10d."""
        import torch.distributed

        library = torch.library.Library("c10d", "IMPL")
        for name, operation in OPERATIONS.items():
            kernel = self._kernel(name, operation, timed_kernel(name), is_timed)
            library.impl(name, kernel, "BackendSelect", with_keyset=True)
        self._library = library

    def poll(self) -> None:
        """Show waits, once they are some, and take them back when they are over."""
        waits = dict(self._waits)
        for thread, wait in list(self._shown.items()):
            if waits.get(thread) is not wait:
                del self._shown[thread]
                if wait.pair is not None:
                    self._write(wait.message, wait.pair, wait.pair.completed, wait.since)
        now = native.now()
        for thread, wait in waits.items():
            if thread not in self._shown and now - wait.since >= 1e9 * OPEN_SECONDS:
                wait.pair = self._pair(wait.message)
                self._shown[thread] = wait
                self._write(wait.message, wait.pair, wait.pair.completed + 1, wait.since)
        if self.num_completed != self._num_marked:
            self._num_marked = self.num_completed
            self._mark_progress()

    def _mark_progress(self) -> None:
        """Show in one pair of this rank, its first, when a message was completed last: its count goes up and back."""
        if self._mark is None and self._last is not None:
            self._mark = self._pair(self._last)
        mark = self._mark
        if mark is None or any(wait.pair is mark for wait in self._shown.values()):
            return
        for count in (mark.completed + 1, mark.completed):
            native.counts(self._handle, mark.slot, count, count)

    def _pair(self, message: _Message) -> Pair:
        group = self._groups.find(message.torch_name, message.description, "gloo")
        ends = message.rank, message.peer
        return self._groups.pair(group, *(ends if message.operation == "send" else reversed(ends)))

    def _write(self, message: _Message, pair: Pair, sequence: int, since: int) -> None:
        """A wait is for the pair's next message, which is not counted when it is over: others went by unseen.

        Ignored while messages of the pair are timed.
        """
        native.counts(self._handle, pair.slot, sequence, pair.completed)
        if sequence == 0:
            return
        group = self._groups.find(message.torch_name, message.description, "gloo")
        dtype = native.DTYPES.index(message.dtype) if message.dtype in native.DTYPES else 0
        info = native.OperationInfo(
            sequence=sequence,
            signature=signature(0, dtype, message.numel),
            numel=message.numel,
            operation=native.OPERATIONS.index(message.operation),
            dtype=dtype,
            root=group.ranks[message.peer] if group.ranks else message.peer,
        )
        native.describe(self._handle, pair.slot, info, since)

    def _kernel(
        self, name: str, operation: str, timed: Callable[..., Any], is_timed: Callable[[], bool]
    ) -> Callable[..., Any]:
        """What the dispatcher calls. Whatever fails in it but the operation itself is let go."""
        import torch.distributed

        operator = getattr(torch.ops.c10d, name).default
        names = [argument.name for argument in operator._schema.arguments]
        group_at, peer_at = names.index("process_group"), names.index("dst" if operation == "send" else "src")
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        redispatch = operator.redispatch
        unbox_group = torch.distributed.ProcessGroup.unbox

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if is_timed():
                return timed(keyset, *args, **kwargs)
            result = redispatch(keyset & below, *args, **kwargs)
            try:
                (tensor,) = args[0]
                if not tensor.is_cpu:
                    return result
                group = unbox_group(args[group_at])
                message = _Message(
                    group.group_name,
                    group.group_desc,
                    operation,
                    group.rank(),
                    args[peer_at],
                    str(tensor.dtype).removeprefix("torch."),
                    tensor.numel(),
                )
                return self._watched(result, message)
            except Exception:
                return result

        return kernel

    def _watched(self, boxed: Any, message: _Message) -> Any:
        """A work in place of gloo's, which knows as little before somebody has waited for it."""
        from torch._C._distributed_c10d import PythonCallbackWork, Work

        work: Any = Work.unbox(boxed)
        waits = self._waits

        def wait(timeout: Any) -> bool:
            thread = threading.get_ident()
            waits[thread] = _Wait(message)
            try:
                done: bool = work.wait(timeout) if timeout else work.wait()
                self._last = message
                self.num_completed += 1
                return done
            finally:
                waits.pop(thread, None)

        return PythonCallbackWork(wait).boxed()
