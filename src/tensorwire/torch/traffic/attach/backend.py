"""A process group whose sums travel through a codec: tensor parallelism, and whatever else calls torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..collectives import Call, all_reduce, share, summed
from ..counters import Counters
from ..exchange import Exchange
from .attachment import COUNTERS, as_future, check_choice
from .fsdp import scales

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from torch import Tensor

    from ..codecs.codec import Codec


def register_backend(name: str, codec: Codec, *, minimum: int = 64 << 10) -> None:
    """A backend of torch.distributed for tensors on the CPU: gloo, with a codec in its sums and gathers.

    `dist.new_group(backend=name)`, or `init_device_mesh(..., backend_override={"tp": name})`, makes groups of it.
    all_reduce and reduce_scatter by SUM or AVG, and all_gather, go through the codec where they have at least `minimum`
    bytes of floating-point numbers. Everything else is gloo's: other reductions, integers, small tensors, broadcasts,
    send and receive, barriers.

    Args:
        name: of the backend, which is not yet one of torch.distributed.
        codec: lossless, or lossy for tensors whose exact values do not matter. Sums are in FP32 and in the order of
            ranks; an all_reduce quantizes twice.
        minimum: bytes of the smallest tensor that goes through the codec.

    Raises:
        ValueError: the name is taken, or `minimum` is negative.
        TypeError: the codec is none.
    """
    check_choice(codec, "a backend")
    if minimum < 0:
        raise ValueError(f"expected a minimum of at least 0 bytes, got {minimum}")
    if name.lower() in dist.Backend.backend_list:
        raise ValueError(f"expected a name that is no backend yet, got {name!r}")

    def create(store: dist.Store, rank: int, size: int, timeout: Any) -> _Group:
        return _Group(store, rank, size, timeout, name, codec, minimum)

    dist.Backend.register_backend(name, create, devices=["cpu"])


class _Group(dist.ProcessGroup):  # type: ignore[misc]
    """What is not overridden here goes to gloo, with which it is registered."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, timeout: Any, name: str, codec: Codec, minimum: int
    ) -> None:
        super().__init__(rank, size)
        self._name, self._codec, self._minimum = name, codec, minimum
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        kind = dist.ProcessGroup.BackendType.GLOO
        self._set_default_backend(kind)
        self._register_backend(torch.device("cpu"), kind, self._gloo)
        COUNTERS[self] = self._counters = Counters()
        self._exchange: Exchange | None = None

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        return self._name

    def _coded(self, tensor: Tensor) -> bool:
        return bool(tensor.is_floating_point()) and tensor.nbytes >= self._minimum and self.size() > 1

    def _submit(self, direction: str, tensor: Tensor, work: Callable[[Call], None], result: Any) -> dist.Work:
        if self._exchange is None:
            self._exchange = Exchange(dist.get_process_group_ranks(self))
        exchange, row = self._exchange, self._counters.row(f"{tuple(tensor.shape)} {tensor.dtype}", direction)
        key = hash((row.calls, exchange.ranks[exchange.rank])) & (1 << 62) - 1
        call = Call(exchange, self._codec, row, key)
        return _work(exchange.submit(lambda: work(call)), result)

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        listed = tensors if isinstance(tensors, list) else [tensors]
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        if len(listed) != 1 or not _is_sum(op) or not self._coded(listed[0]):
            return self._gloo.allreduce(listed, opts) if opts is not None else self._gloo.allreduce(listed)
        tensor, factor = listed[0], scales(op, self.size())[1]

        def work(call: Call) -> None:
            flat = tensor.contiguous().view(-1)
            all_reduce(call, flat, factor)
            if not tensor.is_contiguous():
                tensor.copy_(flat.view(tensor.shape))

        return self._submit("all_reduce", tensor, work, listed)

    def _allgather_base(self, output: Tensor, own: Tensor, opts: Any = None) -> dist.Work:
        if not self._coded(own) or not output.is_contiguous():
            return self._gloo._allgather_base(output, own, *([] if opts is None else [opts]))
        outs = output.view(-1).chunk(self.size())
        return self._submit("all_gather", own, lambda call: share(call, own.reshape(-1), outs), output)

    def _reduce_scatter_base(self, output: Tensor, whole: Tensor, opts: Any = None) -> dist.Work:
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        if not _is_sum(op) or not self._coded(whole):
            return self._gloo._reduce_scatter_base(output, whole, *([] if opts is None else [opts]))
        factor = scales(op, self.size())[1]

        def work(call: Call) -> None:
            output.copy_((summed(call, whole.reshape(-1).chunk(self.size())) * factor).view(output.shape))

        return self._submit("reduce_scatter", whole, work, output)


def _work(done: Future[None], result: Any) -> dist.Work:
    return torch._C._distributed_c10d._create_work_from_future(as_future(done, result))


def _is_sum(op: Any) -> bool:
    return bool(op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG)
