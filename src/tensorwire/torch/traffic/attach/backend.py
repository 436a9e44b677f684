"""A process group whose sums travel through a codec: tensor parallelism, and all else that calls torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from ...._ground.packages import require
from ..arguments import expect_integer
from ..choice import DecidingCounters
from ..collectives import Collective, all_reduce, scales, share, summed
from ..exchange import Exchange
from .attachment import COUNTERS, CodedWork, check_choice, next_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ..choice import Choice


def register_backend(name: str, codec: Choice, *, minimum: int = 64 << 10) -> None:
    """A backend of torch.distributed for tensors on the CPU: gloo, with a codec in its sums and gathers.

    `dist.new_group(backend=name)`, or `init_device_mesh(..., backend_override={"tp": name})`, makes groups of it.
    all_reduce and reduce_scatter_single by SUM or AVG, all_gather and all_gather_single go through the codec where a
    rank has at least `minimum` bytes of floating-point numbers for them. Everything else is gloo's: other reductions,
    reduce_scatter of a list, integers, small tensors, all_to_all, broadcasts, send and receive, barriers.

    Args:
        name: of the backend, which is not yet one of torch.distributed.
        codec: lossless, or lossy for tensors whose exact values do not matter. Sums are in FP32 or FP64, in the order
            of ranks; an all_reduce quantizes twice. Or a function (shape and dtype, number of the call) -> codec; or
            "auto", which is `Exact` or raw messages, as it pays for each collective in each group.
        minimum: bytes of the smallest tensor that goes through the codec.

    Raises:
        ValueError: the name is taken, or `minimum` is negative.
        TypeError: the codec is none, or is a `Budget`; or another argument has a wrong type.
        ImportError: it needs PyTorch 2.13 or later; the process groups of older ones call other methods.
    """
    require("torch", (2, 13), "a backend of torch.distributed that codes what it sends needs PyTorch")
    check_choice(codec, "a backend")
    if not isinstance(name, str):
        raise TypeError(f"expected the name of a backend, got {name!r}")
    expect_integer("minimum", minimum)
    if minimum < 0:
        raise ValueError(f"expected a minimum of at least 0 bytes, got {minimum}")
    if name.lower() in dist.Backend.backend_list:
        raise ValueError(f"expected a name that is no backend yet, got {name!r}")

    def create(store: dist.Store, rank: int, size: int, timeout: Any) -> _CodedGroup:
        return _CodedGroup(store, rank, size, timeout, name, codec, minimum)

    dist.Backend.register_backend(name, create, devices=["cpu"])


def _gloos(name: str) -> Callable[..., dist.Work]:
    """The method of this name that is gloo's."""

    def method(self: _CodedGroup, *args: Any, **kwargs: Any) -> dist.Work:
        return cast("dist.Work", getattr(self._gloo, name)(*args, **kwargs))

    return method


class _CodedGroup(dist.ProcessGroup):  # type: ignore[misc]
    """What it does not code goes to a process group of gloo that is torch's own.

    It overrides each method that torch calls in Python. Torch keeps the GIL while it runs its own form of one that a
    subclass leaves out, and waits there for the lock of gloo's queue. A thread of gloo that ends an operation has that
    lock and waits for the GIL, since the tensors have Python objects: neither ever goes on. A method of torch's own
    process group runs without the GIL.
    """

    def __init__(
        self, store: dist.Store, rank: int, size: int, timeout: Any, name: str, codec: Choice, minimum: int
    ) -> None:
        super().__init__(rank, size)
        self._name, self._codec, self._minimum, self._timeout = name, codec, minimum, timeout
        self._gloo = dist.ProcessGroup(rank, size)
        gloo, kind = dist.ProcessGroupGloo(store, rank, size, timeout), dist.ProcessGroup.BackendType.GLOO
        for each in (self, self._gloo):
            each._set_default_backend(kind)
            each._register_backend(torch.device("cpu"), kind, gloo)
        COUNTERS[self] = self._counters = DecidingCounters()
        self._exchange: Exchange | None = None

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)
        self._gloo._set_group_name(name)  # by which others know whose operations these are

    def _set_group_desc(self, description: str) -> None:
        super()._set_group_desc(description)
        self._gloo._set_group_desc(description)

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        return self._name

    def shutdown(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        super().shutdown()

    allreduce_coalesced = _gloos("allreduce_coalesced")
    all_to_all_single = _gloos("all_to_all_single")
    barrier = _gloos("barrier")
    broadcast = _gloos("broadcast")
    recv = _gloos("recv")
    reduce_scatter = _gloos("reduce_scatter")
    send = _gloos("send")

    def allreduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        if len(tensors) != 1 or not _is_sum(opts) or not self._coded(tensors[0]):
            return self._gloo.allreduce(tensors, opts)
        tensor, (_, factor) = tensors[0], scales(opts.reduceOp, self.size())

        def work(call: Collective) -> None:
            flat = tensor.contiguous().view(-1)
            all_reduce(call, flat, factor)
            if not tensor.is_contiguous():
                tensor.copy_(flat.view(tensor.shape))

        return self._submit("all_reduce", tensor, work, tensors)

    def all_gather_single(self, output: Tensor, own: Tensor, opts: Any) -> dist.Work:
        if not self._coded(own) or output.numel() != own.numel() * self.size():
            return self._gloo.all_gather_single(output, own, opts)
        return self._gather(output.view(-1).chunk(self.size()), own, output)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> dist.Work:
        if not self._coded(inputs[0]) or any(out.numel() != inputs[0].numel() for out in outputs[0]):
            return self._gloo.allgather(outputs, inputs, opts)
        return self._gather([out.view(-1) for out in outputs[0]], inputs[0], outputs)

    def reduce_scatter_single(self, output: Tensor, whole: Tensor, opts: Any) -> dist.Work:
        if not _is_sum(opts) or not self._coded(whole) or whole.numel() != output.numel() * self.size():
            return self._gloo.reduce_scatter_single(output, whole, opts)
        _, factor = scales(opts.reduceOp, self.size())

        def work(call: Collective) -> None:
            total = summed(call, whole.reshape(-1).chunk(self.size())) * factor
            output.copy_(total.view(output.shape))

        return self._submit("reduce_scatter", whole, work, output)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> dist.Work:
        return _All([self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)])

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> dist.Work:
        return _All([self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)])

    def _coded(self, tensor: Tensor) -> bool:
        dense = tensor.layout == torch.strided and tensor.is_floating_point()
        return bool(dense and tensor.nbytes >= self._minimum and self.size() > 1)

    def _gather(self, outs: Sequence[Tensor], own: Tensor, result: Any) -> dist.Work:
        return self._submit("all_gather", own, lambda call: share(call, own.reshape(-1), outs), result)

    def _submit(self, direction: str, tensor: Tensor, work: Callable[[Collective], None], result: Any) -> dist.Work:
        if self._exchange is None:
            self._exchange = Exchange(
                dist.get_process_group_ranks(self), self._timeout, absent="called the same collective"
            )
        exchange, row = self._exchange, self._counters.row(f"{tuple(tensor.shape)} {tensor.dtype}", direction)
        auto = self._counters.auto(direction)
        done = exchange.submit(lambda: work(next_call(exchange, self._codec, row, auto)))
        return CodedWork(done, result)


class _All(dist.Work):  # type: ignore[misc]
    """Several, which are waited for together."""

    def __init__(self, works: list[dist.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: Any = None) -> bool:
        return all(work.wait() for work in self._works)


def _is_sum(opts: Any) -> bool:
    return bool(opts.reduceOp == dist.ReduceOp.SUM or opts.reduceOp == dist.ReduceOp.AVG)
