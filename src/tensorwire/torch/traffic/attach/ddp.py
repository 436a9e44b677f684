"""DistributedDataParallel: the all-reduce of gradients through codecs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..budget import Budget
from ..choice import NoCodec, chosen
from ..codecs.exact import Exact
from ..codecs.parts import Parts
from ..collectives import all_reduce
from .attachment import Attachment, as_future, check_choice, described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ..choice import Choice
    from ..codecs.codec import Codec
    from ..exchange import Exchange

_EXACT = Exact()


def attach_ddp(model: DistributedDataParallel, *, gradients: Choice = _EXACT) -> Attachment:
    """Put a codec into the all-reduce of gradients: the mean over all ranks, the same bits on all of them.

    `Exact` gives the bits of the same exchange with raw messages: FP32 or FP64 sums in the order of ranks, rounded
    once. The ring of gloo adds in another order, so its bits are others. FP32 gradients travel as frames where all of a
    message is BF16 numbers that were cast, and raw otherwise.

    Args:
        gradients: codec of a bucket; or a function (name of a parameter, step) -> codec, such as `Budget`, by which
            each parameter has its own within the bucket; or "auto".

    Returns:
        The attachment. DDP keeps its hook for good: after `detach()` it sends raw messages by torch's all-reduce.

    Raises:
        ExchangeError: a rank has not attached within the time-out of the default process group.
        ValueError: something is attached, DDP has a hook already, the ranks have called this with unlike arguments, or
            another rank has raised one of these errors. A rank whose model is not under DDP tells no other.
        TypeError: the model is not under DDP, or the codec is none.
        RuntimeError: from backward, on all ranks, with the text of an ExchangeError: one of them could not encode.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"expected a DistributedDataParallel, got {type(model).__name__}")
    attachment = Attachment(model)
    hook = _BucketHook(attachment, model, gradients)

    def prepare() -> None:
        check_choice(gradients, "gradients", budget=True)
        if getattr(model, "_comm_hooks", None):
            raise ValueError(
                "expected DDP without a communication hook, got one, which DDP keeps for good; wrap the model anew"
            )

    attachment.begin([dist.get_process_group_ranks(model.process_group)], {"gradients": described(gradients)}, prepare)
    model.register_comm_hook(None, hook)
    attachment.on_detach(hook.stop)
    return attachment


class _BucketHook:
    """Called with each bucket, in the order in which gradients are ready. Nothing is kept by bucket: DDP makes them
    anew after the first step."""

    def __init__(self, attachment: Attachment, model: DistributedDataParallel, choice: Choice) -> None:
        self._attachment, self._group = attachment, model.process_group
        self._choice: Choice | None = choice
        self._names = {id(each): name for name, each in model.named_parameters()}
        self._decided = -1
        self.__name__ = self.__qualname__ = "tensorwire"  # DDP writes them into its log

    def stop(self) -> None:
        self._choice = None

    def __call__(self, _: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer, choice = bucket.buffer(), self._choice
        if choice is None:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            return allreduce_hook(self._group, bucket)
        names = [self._names[id(each)] for each in bucket.parameters()]
        name = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        exchange = self._attachment.exchange(dist.get_process_group_ranks(self._group))
        if isinstance(choice, Budget):
            self._follow(choice, exchange)
        if callable(choice):
            gradients, step = dict(zip(names, bucket.gradients(), strict=True)), self._attachment.step
            codecs: Sequence[Codec] = [chosen(choice, each, step, exchange.size) for each in names]
            budget = choice if isinstance(choice, Budget) and choice.due(step) and exchange.rank == 0 else None

            def work() -> None:
                seen = codecs if budget is None else _observed(budget, gradients, codecs)
                self._reduce_each(exchange, list(gradients.values()), seen, name)

            done = exchange.submit(work)
        else:
            codec = self._attachment.codec(choice, exchange, name, "all_reduce")
            call = self._attachment.call(exchange, codec, name, "all_reduce")
            done = exchange.submit(lambda: all_reduce(call, buffer, 1 / exchange.size))
        return as_future(done, buffer)

    def _reduce_each(self, exchange: Exchange, gradients: Sequence[Tensor], codecs: Sequence[Codec], name: str) -> None:
        """All of them in one exchange. Each is filled up to a multiple of the ranks, so that every rank has an equal
        part of each."""
        numels = [-(-each.numel() // exchange.size) for each in gradients]
        rows = torch.cat(
            [
                torch.nn.functional.pad(each.reshape(-1), (0, numel * exchange.size - each.numel())).view(
                    exchange.size, -1
                )
                for each, numel in zip(gradients, numels, strict=True)
            ],
            1,
        )
        codec = Parts(tuple(zip(numels, codecs, strict=True)), rows.dtype)
        flat = rows.view(-1)
        all_reduce(self._attachment.call(exchange, codec, name, "all_reduce"), flat, 1 / exchange.size)
        for each, part in zip(gradients, flat.view(exchange.size, -1).split(numels, 1), strict=True):
            each.view(-1).copy_(part.reshape(-1)[: each.numel()])

    def _follow(self, budget: Budget, exchange: Exchange) -> None:
        """Rank 0 looks at the gradients of a step, and decides for all ranks at the beginning of the next one."""
        step = self._attachment.step
        if budget.due(step - 1) and self._decided < step:
            self._decided = step
            budget.take(exchange.submit(lambda: exchange.from_first(budget.decide)).result())


def _observed(budget: Budget, gradients: dict[str, Tensor], codecs: Sequence[Codec]) -> Sequence[Codec]:
    """The codecs, once the budget has looked at the gradients. Where it fails, an encoder does: the other ranks wait
    for a message."""
    try:
        for name, gradient in gradients.items():
            budget.observe(name, gradient)
    except Exception as error:
        return [NoCodec(error)] * len(codecs)
    return codecs


# DDP wants to see the classes themselves.
_BucketHook.__call__.__annotations__.update(bucket=dist.GradBucket, **{"return": torch.futures.Future[torch.Tensor]})
