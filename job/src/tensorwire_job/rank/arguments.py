"""What torch's Flight Recorder does not keep of collectives: roots, and how many elements an all_to_all exchanges with
each rank. A kernel of the dispatcher notes both, which costs these operations some microseconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from tensorwire._ground.copies import not_copied

from ..page import native

# By c10d's name, the arguments with what is given to each rank and taken from it: a tensor for each, or the counts.
_SHARES: Final = {"alltoall_": (1, 0), "alltoall_base_": (4, 3)}
NOTED: Final = (*_SHARES, "broadcast_", "gather_", "reduce_", "scatter_")
ROOT: Final = "root_rank"
_MAX_NOTED: Final = 256


class _Arguments(NamedTuple):
    """The arguments of one operation."""

    called_ns: int  # on the wall's clock, as in the recorder, whose entry comes a moment later
    torch_name: str
    root: int
    given: list[int]  # empty where all get the same
    taken: list[int]


class Arguments:
    """The arguments of the last collectives. The kernels may run in any thread."""

    __reduce_ex__ = not_copied("kernels of this process", "attach in the other process")

    def __init__(self) -> None:
        self._noted: deque[_Arguments] = deque(maxlen=_MAX_NOTED)
        self._library: Any = None

    def register(self, counted_kernel: Callable[[str], Callable[..., Any]], is_timed: Callable[[], bool]) -> None:
        """Look at the arguments from now on. While `is_timed`, the kernel of `counted_kernel` runs too."""
        import torch.distributed

        library = torch.library.Library("c10d", "IMPL")
        for name in NOTED:
            kernel = self._kernel(name, counted_kernel(name), is_timed)
            library.impl(name, kernel, "BackendSelect", with_keyset=True)
        self._library = library

    def _kernel(self, name: str, counted: Callable[..., Any], is_timed: Callable[[], bool]) -> Callable[..., Any]:
        import torch.distributed

        operator = getattr(torch.ops.c10d, name).default
        names = [argument.name for argument in operator._schema.arguments]
        group_at = names.index("process_group")
        root_at = names.index(ROOT) if ROOT in names else None
        shares_at = _SHARES.get(name)
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        redispatch = operator.redispatch
        unbox_group = torch.distributed.ProcessGroup.unbox

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            with suppress(Exception):
                root = native.NO_ROOT if root_at is None else args[root_at]
                given, taken = ([], []) if shares_at is None else (_counts(args[at]) for at in shares_at)
                self._noted.append(
                    _Arguments(time.time_ns(), unbox_group(args[group_at]).group_name, root, given, taken)
                )
            return counted(keyset, *args, **kwargs) if is_timed() else redispatch(keyset & below, *args, **kwargs)

        return kernel

    def root(self, torch_name: str, called_ns: range) -> int:
        """The root, within the group, of the operation that a group began then; NO_ROOT where none is known."""
        noted = self._of(torch_name, called_ns)
        return native.NO_ROOT if noted is None else noted.root

    def exchanged(self, torch_name: str, called_ns: range, given: int, taken: int, size: int) -> tuple[int, ...]:
        """The counts of the exchange that a group began then; () where they do not fit the elements in all."""
        noted = self._of(torch_name, called_ns)
        if noted is None:
            return ()
        both = _scaled(noted.given, given, size), _scaled(noted.taken, taken, size)
        return (*both[0], *both[1]) if all(len(counts) == size for counts in both) else ()

    def _of(self, torch_name: str, called_ns: range) -> _Arguments | None:
        """Args:
        called_ns: since the recorder's entry of the group before, and until that of the operation. A thread may be
            held after its kernel and before the recorder: that operation has no entry yet.
        """
        for noted in reversed(list(self._noted)):
            if noted.torch_name == torch_name and noted.called_ns in called_ns:
                return noted
        return None


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
