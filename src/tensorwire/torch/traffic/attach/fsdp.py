"""FSDP2: the all-gather of parameters, and the reduce-scatter of gradients, through codecs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ..codecs.exact import Exact
from ..collectives import Replica
from ..counters import Counters
from ..exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from typing import Any

    from torch import Tensor

    from ..codecs.codec import Codec

    Choice = Codec | Callable[[str, int], Codec]


class Attachment:
    """Ends with `detach()`, or with the process. All ranks detach between the same two steps."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._exchanges: dict[tuple[int, ...], Exchange] = {}
        self._undo: list[Callable[[], None]] = []

    def exchange(self, group: dist.ProcessGroup) -> Exchange:
        ranks = tuple(dist.get_process_group_ranks(group))
        if ranks not in self._exchanges:
            self._exchanges[ranks] = Exchange(group)
        return self._exchanges[ranks]

    def detach(self) -> None:
        """Give torch its own collectives back. The second time it does nothing."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges.clear()


class _AllGather:
    """What FSDP2 calls in place of its all-gather, for one module.

    FSDP2 asks for memory, puts this rank's shard at its place there, has the rest filled, and copies all of it away
    before the next call: so the memory is ours to keep, and is the base of the next call.
    """

    def __init__(self, attachment: Attachment, name: str, codec: Codec) -> None:
        self._attachment, self._name, self._codec = attachment, name, codec
        self._replicas: dict[tuple[int, torch.dtype], Replica] = {}

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        key = (int(size[0]), dtype)
        if key not in self._replicas:
            self._replicas[key] = Replica(key[0], dtype, device)
        return self._replicas[key].buffer

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        exchange = self._attachment.exchange(group)
        replica = self._replicas[output_tensor.numel(), output_tensor.dtype]
        row = self._attachment.counters.row(self._name, "all_gather")
        done = exchange.submit(lambda: replica.gather(exchange, input_tensor, self._codec, row))
        if async_op:
            return as_work(done)
        done.result()
        return None


def as_work(done: Future[None]) -> dist.Work:
    """What torch waits for."""
    future: torch.futures.Future[None] = torch.futures.Future()

    def finish(done: Future[None]) -> None:
        error = done.exception()
        future.set_result(None) if error is None else future.set_exception(error)

    done.add_done_callback(finish)
    return torch._C._distributed_c10d._create_work_from_future(future)  # noqa: SLF001 - there is no public way


def attach_fsdp(model: torch.nn.Module, *, weights: Codec = Exact()) -> Attachment:
    from torch.distributed.fsdp import FSDPModule

    modules = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    if not modules:
        raise ValueError("expected a model of FSDP2 (fully_shard), got one without")
    attachment = Attachment()
    for name, module in modules.items():
        _replace_all_gather(attachment, module, _AllGather(attachment, name or "root", weights))
    return attachment


def _replace_all_gather(attachment: Attachment, module: Any, comm: _AllGather) -> None:
    groups = module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001 - what it had before is told nowhere else
    before = [group._all_gather_comm for group in groups]  # noqa: SLF001
    if any(isinstance(each, _AllGather) for each in before):
        raise ValueError("expected a model that nothing is attached to; detach() first")
    module.set_custom_all_gather(comm)

    def undo() -> None:
        for each in before:
            module.set_custom_all_gather(each)

    attachment._undo.append(undo)
