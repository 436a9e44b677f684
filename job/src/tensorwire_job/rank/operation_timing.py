"""Times every collective of torch.distributed on CPU tensors, while the agent asks for it.

All of them, whether DDP, FSDP2, functional collectives or a script makes them, go through the dispatcher as c10d::*.
Kernels for the dispatch key BackendSelect, which every call passes (in inference mode too, and below autograd), note
when an operation is entered and pass it on. They also wait for a synchronous one, as its caller is about to do. The
future of any other, or where there is none the end of wait(), tells when it is done.
They are kernels because c10d has no hook that would do: the registerOnCompletionHook of torch 2.13 is NCCL's only, and
for gloo the Python binding has none. (From torch 2.14 on, a process group has hooks before and after an operation.)
They are registered only while timing is enabled, except those of messages (messages.py). The last one to run takes
all of them away: a kernel that another thread removed could go while the dispatcher is about to call it.

Not timed: messages (messages.py counts them, and the time waited for them, at all times), and operations on
accelerators (their futures are complete once the kernel is launched; the NCCL plugin times those).
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from tensorwire._ground.copies import not_copied

from ..page import native
from ..page.recorder_entries import collective_signature
from .arguments import NOTED, ROOT
from .messages import OPERATIONS
from .process_groups import sequence_number

if TYPE_CHECKING:
    from ..page.control import ControlRequest
    from .flight_recorder import FlightRecorder
    from .process_groups import BackendGroup, BackendGroups


class _Kind(NamedTuple):
    operation: str
    tensors: int  # which argument holds this rank's input, or what has its size
    agrees: bool = True  # on dtype and number of elements
    is_pairwise: bool = False  # P means nothing for it, see tensorwire_job.model.Timing
    shares: tuple[int, ...] = ()  # arguments with what goes to and comes from each rank: P needs all to exchange some


_KINDS: Final = {
    "_allgather_base_": _Kind("all_gather_into_tensor", 1),
    "_reduce_scatter_base_": _Kind("reduce_scatter_tensor", 1),
    "allgather_": _Kind("all_gather", 1),
    "allgather_coalesced_": _Kind("all_gather_coalesced", 1),
    "allgather_into_tensor_coalesced_": _Kind("all_gather_into_tensor_coalesced", 1),
    "allreduce_": _Kind("all_reduce", 0),
    "allreduce_coalesced_": _Kind("all_reduce_coalesced", 0),
    "alltoall_": _Kind("all_to_all", 1, agrees=False, shares=(0, 1)),
    "alltoall_base_": _Kind("all_to_all_single", 1, agrees=False, shares=(3, 4)),
    "barrier": _Kind("barrier", 0, agrees=False, is_pairwise=True),
    "broadcast_": _Kind("broadcast", 0, is_pairwise=True),
    "gather_": _Kind("gather", 1, is_pairwise=True),
    "monitored_barrier_": _Kind("monitored_barrier", 0, agrees=False, is_pairwise=True),
    "recv_": _Kind("", 0),  # only counted, see messages.py
    "recv_any_source_": _Kind("", 0),  # only counted
    "reduce_": _Kind("reduce", 0, is_pairwise=True),
    "reduce_scatter_": _Kind("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": _Kind("reduce_scatter_tensor_coalesced", 1),
    "scatter_": _Kind("scatter", 0, agrees=False, is_pairwise=True),
    "send": _Kind("", 0),  # only counted
}
_MAX_INFOS: Final = 4096
_CALLBACK_SECONDS: Final = 1.0  # that the end of the process waits for callbacks at most
_UNNUMBERED: Final = ("", "monitored_barrier")  # gloo counts them, though ranks of a group differ in those


@dataclass(slots=True)
class _Timed:
    """A group while timing is enabled."""

    slot: int
    group: BackendGroup
    offset: int = 0  # what torch's numbers count besides collectives
    counter: int | None = None  # where torch does not number the operations

    def next_sequence(self, before: int | None) -> int:
        """The number of an operation, from torch's number of the one before."""
        if self.counter is None and before is not None:
            return before - self.offset + 1
        self.counter = (self.counter or 0) + 1
        return self.counter


@dataclass(slots=True)
class _Window:
    """Keeps no process group alive: that would keep threads of gloo's alive, and none may be left at the end."""

    control: ControlRequest
    groups: MutableMapping[Any, _Timed] = field(default_factory=WeakKeyDictionary)  # by process group


class Dispatcher:
    """Enables and disables the timing of this rank.

    :meth:`follow` is for one thread; the rest runs in those that make operations, one at a time thanks to the GIL.
    """

    __reduce_ex__ = not_copied("kernels and the page of this process", "attach in the other process")

    def __init__(self, handle: int, groups: BackendGroups, recorder: FlightRecorder | None) -> None:
        self._handle = handle
        self._groups = groups
        self._recorder = recorder
        self._number = 0
        self._state: _Window | None = None
        self._library: Any = None
        self._lock = threading.Lock()
        self._awaited: WeakSet[Callable[..., None]] = WeakSet()  # callbacks that threads of torch's are still to make

    def follow(self, control: ControlRequest) -> None:
        """Act on a request, once."""
        if control.number == self._number:
            return
        self._number = control.number
        if control.num_rounds == 0:
            self.disable()
            return
        self._state = _Window(control)
        self._register()
        native.enable_timing(self._handle, True, control.number)  # last: the page never promises what is not seen yet

    def disable(self) -> None:
        """Stop timing. The kernels go with the next operation."""
        self._state = None
        native.enable_timing(self._handle, False, self._number)
        if self._recorder is not None:
            self._recorder.recount()

    def close(self) -> None:
        """Wait until no thread of torch's has a callback to make, or to drop, after the end of the interpreter."""
        deadline = time.monotonic() + _CALLBACK_SECONDS
        while self._awaited and time.monotonic() < deadline:
            time.sleep(0.005)
        self._state = None

    def _register(self) -> None:
        import torch.distributed

        with self._lock:
            if self._library is not None:
                return
            library = torch.library.Library("c10d", "IMPL")
            for name, kind in _KINDS.items():
                packet = getattr(torch.ops.c10d, name, None)
                if packet is not None and name not in OPERATIONS and name not in NOTED:
                    library.impl(name, self._kernel(packet.default, kind), "BackendSelect", with_keyset=True)
            self._library = library

    @property
    def is_timing(self) -> bool:
        return self._state is not None

    def kernel(self, name: str) -> Callable[..., Any]:
        """The kernel of an operation that always passes one. Messages do, since gloo counts them with collectives."""
        import torch.distributed

        return self._kernel(getattr(torch.ops.c10d, name).default, _KINDS[name])

    def _unregister(self) -> None:
        with self._lock:
            if self._library is not None and self._state is None:
                self._library._destroy()
                self._library = None

    def _kernel(self, operator: Any, kind: _Kind) -> Callable[..., Any]:
        """The kernel that the dispatcher calls. Only an error of the operation itself leaves it."""
        import torch.distributed

        names = [argument.name for argument in operator._schema.arguments]
        group_at = names.index("process_group")
        async_at = names.index("async_op") if "async_op" in names else len(names)
        root_at = names.index(ROOT) if ROOT in names else None
        redispatch = operator.redispatch
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        unbox_group, unbox_work = torch.distributed.ProcessGroup.unbox, torch.distributed.Work.unbox
        describe = _Describer(kind)
        is_unnumbered = kind.operation in _UNNUMBERED

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            state = self._state
            if state is None:
                self._unregister()
                return redispatch(keyset & below, *args, **kwargs)
            timed: Any = None
            before: int | None = None
            token = 0
            try:
                tensors = _tensors(args[kind.tensors])
                if not tensors or tensors[0].is_cpu:
                    process_group = unbox_group(args[group_at])
                    timed = state.groups.get(process_group) or self._timed(state, process_group)
                    before = sequence_number(process_group)
                    root = native.NO_ROOT if root_at is None else args[root_at]
                    if kind.operation:
                        sequence = timed.next_sequence(before)
                        token = native.enter(self._handle, timed.slot, describe(tensors, root, sequence, args))
            except Exception:
                token = 0
            try:
                result = redispatch(keyset & below, *args, **kwargs)
            except BaseException:
                if token:
                    self._complete(state, timed, token)
                raise
            try:
                if is_unnumbered and before is not None:
                    timed.offset += sequence_number(process_group) - before
                if token and len(args) > async_at and not args[async_at]:
                    with suppress(Exception):  # the caller, who waits too, gets it again
                        unbox_work(result[-1] if isinstance(result, tuple) else result).wait()
                    self._complete(state, timed, token)
                elif token:
                    return self._await(result, functools.partial(self._complete, state, timed, token))
            except Exception:
                pass
            return result

        return kernel

    def _timed(self, state: _Window, process_group: Any) -> _Timed:
        """The group, on its first operation while timing is enabled."""
        group = self._groups.find(process_group.group_name, process_group.group_desc, "gloo")
        timed = state.groups[process_group] = _Timed(group.slot, group)
        before = sequence_number(process_group)
        if before is None:
            timed.counter = 0
        elif self._recorder is not None:
            collectives = self._recorder.num_collectives(group)
            if collectives is not None:
                timed.offset = before - collectives
        control = state.control
        native.window(self._handle, timed.slot, control.first.get(group.id, 1), control.num_rounds)
        return timed

    def _await(self, result: Any, end: Callable[..., None]) -> Any:
        """Have the operation's end noted. Returns the result for the caller of the operation."""
        from torch.distributed import Work

        boxed = result[-1] if isinstance(result, tuple) else result
        if boxed is None:  # it is over
            end()
            return result
        work: Any = Work.unbox(boxed)
        try:
            future = work.get_future()
        except RuntimeError:  # some of gloo's works have none: reduce_scatter
            watched = self._watch(work, end)
            return (*result[:-1], watched) if isinstance(result, tuple) else watched
        self._awaited.add(end)
        future.add_done_callback(end)
        return result

    def _watch(self, work: Any, end: Callable[..., None]) -> Any:
        """A work in place of one without a future. It is over when it has been waited for."""
        from torch._C._distributed_c10d import PythonCallbackWork

        def wait(timeout: Any) -> bool:
            try:
                done: bool = work.wait(timeout) if timeout else work.wait()
                return done
            finally:
                end()

        return PythonCallbackWork(wait).boxed()

    def _complete(self, state: _Window, timed: _Timed, token: int, _: object = None) -> None:
        now = time.monotonic_ns()
        if state is self._state:
            native.complete(self._handle, timed.slot, token, now)


class _Describer:
    """Makes OperationInfo of operations of one kind, and keeps it: often only the number changes."""

    def __init__(self, kind: _Kind) -> None:
        import torch

        self._code = native.OPERATIONS.index(kind.operation)
        self._kind = kind
        self._dtypes = {getattr(torch, name): code for code, name in enumerate(native.DTYPES) if hasattr(torch, name)}
        self._infos: dict[tuple[Any, int, int], native.OperationInfo] = {}

    def __call__(self, tensors: list[Any], root: int, sequence: int, args: tuple[Any, ...]) -> int:
        """The address of an OperationInfo that is good until the next call."""
        first: Any = tensors[0] if tensors else None
        dtype = None if first is None else first.dtype
        numel = first.numel() if len(tensors) == 1 else sum(tensor.numel() for tensor in tensors)
        info = self._infos.get((dtype, numel, root))
        if info is None:
            if len(self._infos) >= _MAX_INFOS:
                self._infos.clear()
            nbytes = 0 if first is None else numel * first.element_size()
            info = self._infos[dtype, numel, root] = self._make(self._dtypes.get(dtype, 0), numel, nbytes, root)
        info.sequence = sequence
        if self._kind.shares:
            info.pairwise = any(_is_partial(args[at]) for at in self._kind.shares)
        return ctypes.addressof(info)

    def _make(self, dtype: int, numel: int, nbytes: int, root: int) -> native.OperationInfo:
        agreed = (dtype, numel) if self._kind.agrees else (0, -1)
        number = collective_signature(self._code, *agreed)
        return native.OperationInfo(
            sequence=0,
            signature=number,
            numel=numel,
            nbytes=nbytes,
            operation=self._code,
            dtype=dtype,
            root=root,
            pairwise=self._kind.is_pairwise,
        )


def _is_partial(shares: list[Any]) -> bool:
    """Whether a rank gives another nothing: neither then waits for the other. An empty list means equal shares."""
    return any(not (share if isinstance(share, int) else share.numel()) for share in shares)


def _tensors(argument: Any) -> list[Any]:
    """The tensors of an argument: one, a list, or a list of lists."""
    if not isinstance(argument, list):
        return [argument]
    return list(_flat(argument)) if argument and isinstance(argument[0], list) else argument


def _flat(lists: list[Any]) -> Iterator[Any]:
    for inner in lists:
        yield from inner
