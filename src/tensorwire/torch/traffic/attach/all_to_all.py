"""All-to-all of rows, coded in both directions: embeddings of sharded tables, tokens of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..codecs.exact import Exact
from ..collectives import Call, swap
from ..counters import Counters
from ..exchange import Exchange
from .attachment import COUNTERS, check_choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ..codecs.codec import Codec

_EXACT = Exact()


def all_to_all(
    rows: Tensor,
    splits: Sequence[int],
    *,
    codec: Codec = _EXACT,
    backward: Codec | None = None,
    group: dist.ProcessGroup | None = None,
    name: str = "rows",
) -> tuple[Tensor, list[int]]:
    """Send so many rows to each rank and get theirs; gradients travel back in the same way.

    All ranks call it, in the same order. What a rank keeps for itself is copied and never coded. A lossy codec has the
    gradient of the identity.

    Args:
        rows: a tensor of at least one dimension on the CPU, sorted by the rank that they go to.
        splits: how many go to each rank. They may change from call to call, and may be 0.
        codec: of the rows.
        backward: of their gradients; by default `codec`.
        group: by default all ranks.
        name: of the rows in `counters(group)`.

    Returns:
        The rows that came, sorted by the rank that they came from, and how many came from each.

    Raises:
        ValueError: `splits` does not fit the group or the rows.
        TypeError: a codec is none.
        ExchangeError: here or in backward, on all ranks: one of them could not encode.
    """
    for each in (codec, backward or codec):
        check_choice(each, "rows")
    exchange, counters = exchange_of(group)
    if len(splits) != exchange.size or sum(splits) != len(rows) or min(splits, default=0) < 0:
        raise ValueError(f"expected {exchange.size} numbers of rows with the sum {len(rows)}, got {list(splits)}")
    received, come = _Swap.apply(rows, list(splits), codec, backward or codec, exchange, counters, name)
    return received, come


class _Swap(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, rows: Tensor, splits: list[int], *how: Any) -> tuple[Tensor, list[int]]:
        codec, _, exchange, counters, name = how
        come = exchange.submit(lambda: exchange.swap_numbers(splits)).result()
        ctx.how, ctx.splits, ctx.come = how, splits, come
        return _swapped(rows, splits, come, Call(exchange, codec, counters.row(name, "all_to_all"))), come

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Any, ...]:
        _, codec, exchange, counters, name = ctx.how
        call = Call(exchange, codec, counters.row(name, "all_to_all, backward"))
        return (_swapped(gradient, ctx.come, ctx.splits, call), *[None] * 6)


def _swapped(rows: Tensor, splits: list[int], come: list[int], call: Call) -> Tensor:
    key = hash((call.row.calls, call.exchange.ranks[call.exchange.rank])) & (1 << 62) - 1
    call = Call(call.exchange, call.codec, call.row, key)
    received = rows.new_empty(sum(come), *rows.shape[1:])
    flat = [part.reshape(-1) for part in rows.contiguous().split(splits)]
    outs = [part.view(-1) for part in received.split(come)]
    call.exchange.submit(lambda: swap(call, flat, outs)).result()
    return received


_EXCHANGES: dict[tuple[int, ...], tuple[dist.ProcessGroup, Exchange, Counters]] = {}


def exchange_of(group: dist.ProcessGroup | None) -> tuple[Exchange, Counters]:
    """One for all calls on a group. Another process group with the same ranks, made later, has a new one."""
    group = group or dist.distributed_c10d._get_default_group()
    ranks = tuple(dist.get_process_group_ranks(group))
    if ranks not in _EXCHANGES or _EXCHANGES[ranks][0] is not group:
        _EXCHANGES[ranks] = (group, Exchange(list(ranks)), COUNTERS.setdefault(group, Counters()))
    return _EXCHANGES[ranks][1:]
