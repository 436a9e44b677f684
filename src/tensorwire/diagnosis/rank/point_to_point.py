"""Which message this rank waits for, while nothing times them.

gloo tells the Flight Recorder nothing of send and recv, so that a rank which waits in one would look like one that is
in no operation at all. While its main thread waits in either of torch's two functions, the function is the innermost
of the thread's frames, and its variables name the group, the peer and the tensor. A poll takes a few microseconds.

Not seen: waiting for what isend, irecv or batch_isend_irecv began (nothing keeps the peer), receiving from any source,
what other threads wait for aside, and messages between accelerators (the NCCL plugin sees those).
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..page import native
from ..page.recorder_entries import signature
from .flight_recorder import OPEN_SECONDS
from .process_groups import sequence_number

if TYPE_CHECKING:
    from .process_groups import Groups, Pair

_TORCH_FUNCTIONS: Final = "distributed_c10d.py"
_PEERS: Final = {"send": ("group_dst", "dst"), "recv": ("group_src", "src")}  # of variables: in the group, globally


class _Wait(NamedTuple):
    """Two that are equal are the same wait: gloo numbers messages too."""

    torch_name: str
    description: str
    number: int  # torch's, of the group's last operation
    operation: str
    rank: int  # within the group
    peer: int
    dtype: str
    numel: int


class Messages:
    """Writes to the page what the main thread waits for. For one thread."""

    def __init__(self, handle: int, groups: Groups) -> None:
        self._handle = handle
        self._groups = groups
        self._wait: _Wait | None = None
        self._since = 0
        self._pair: Pair | None = None  # where the wait is shown

    def poll(self) -> None:
        """Show the wait, once it is one, and take it back when it is over."""
        wait = _present_wait()
        if wait != self._wait:
            if self._pair is not None and self._wait is not None:
                self._write(self._wait, self._pair, self._pair.completed)
            self._wait, self._since, self._pair = wait, native.now(), None
        elif wait is not None and self._pair is None and native.now() - self._since >= 1e9 * OPEN_SECONDS:
            group = self._groups.find(wait.torch_name, wait.description, "gloo")
            ends = (wait.rank, wait.peer) if wait.operation == "send" else (wait.peer, wait.rank)
            self._pair = self._groups.pair(group, *ends)
            self._write(wait, self._pair, self._pair.completed + 1)

    def _write(self, wait: _Wait, pair: Pair, sequence: int) -> None:
        """A wait is for the pair's next message, which is not counted when it is over: others went by unseen.

        Ignored while messages of the pair are timed.
        """
        native.counts(self._handle, pair.slot, sequence, pair.completed)
        if sequence == 0:
            return
        group = self._groups.find(wait.torch_name, wait.description, "gloo")
        dtype = native.DTYPES.index(wait.dtype) if wait.dtype in native.DTYPES else 0
        info = native.OperationInfo(
            sequence=sequence,
            signature=signature(0, dtype, wait.numel),
            numel=wait.numel,
            operation=native.OPERATIONS.index(wait.operation),
            dtype=dtype,
            root=group.ranks[wait.peer] if group.ranks else wait.peer,
        )
        native.describe(self._handle, pair.slot, info, self._since)


def _present_wait() -> _Wait | None:
    """What the main thread waits for in torch's send or recv."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None or frame.f_code.co_name not in _PEERS or not frame.f_code.co_filename.endswith(_TORCH_FUNCTIONS):
        return None
    variables = frame.f_locals
    tensor: Any = variables.get("tensor")
    if variables.get("work") is None or not tensor.is_cpu:
        return None
    import torch.distributed

    operation = frame.f_code.co_name
    group: Any = variables["group"] or torch.distributed.group.WORLD
    peer, global_peer = (variables[name] for name in _PEERS[operation])
    if peer is None and global_peer is not None:
        peer = torch.distributed.get_group_rank(group, global_peer)
    number = sequence_number(group)
    if peer is None or number is None:
        return None
    dtype = str(tensor.dtype).removeprefix("torch.")
    return _Wait(group.group_name, group.group_desc, number, operation, group.rank(), peer, dtype, tensor.numel())
