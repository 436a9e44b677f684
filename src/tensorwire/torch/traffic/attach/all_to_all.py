"""All-to-all of rows, coded in both directions: embeddings of sharded tables, tokens of experts."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, finalize

import torch
import torch.distributed as dist

from ..choice import DecidingCounters
from ..codecs.exact import Exact
from ..collectives import swap
from ..exchange import Exchange, ExchangeError, checksum, timeout_of
from .attachment import COUNTERS, check_choice, next_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ..choice import Auto, Choice
    from ..counters import Row

_EXACT = Exact()


def all_to_all(
    rows: Tensor,
    splits: Sequence[int],
    *,
    codec: Choice = _EXACT,
    backward: Choice | None = None,
    group: dist.ProcessGroup | None = None,
    name: str = "rows",
) -> tuple[Tensor, list[int]]:
    """Send so many rows to each rank and get theirs; gradients travel back in the same way.

    All ranks call it, and then backward, in the same order. Rows need a gradient on all ranks or on none. What a rank
    keeps for itself is copied and never coded. A lossy codec has the gradient of the identity.

    Args:
        rows: a tensor of at least one dimension on the CPU, sorted by the rank that they go to.
        splits: how many go to each rank. They may change from call to call, and may be 0.
        codec: of the rows; or a function (name, number of the call) -> codec, which has to give the same on all ranks;
            or "auto", which is `Exact` or raw messages, as it pays for rows of this name in this direction.
        backward: of their gradients; by default `codec`.
        group: by default all ranks.
        name: of the rows in `counters(group)`.

    Returns:
        The rows that came, sorted by the rank that they came from, and how many came from each.

    Raises:
        ValueError: `splits` does not fit the group or the rows.
        TypeError: a codec is none, or is a `Budget`; rows of a lossy codec are no floating-point numbers; or `splits`
            are no integers.
        ExchangeError: a rank makes no first call within the time-out of the group. Or, here and in backward, on all
            ranks: one of them could not encode, or has splits that do not fit or other rows: of another name, dtype or
            shape, or with a gradient where others have none.
    """
    backward = backward or codec
    for each in (codec, backward):
        check_choice(each, "rows")
        if not getattr(each, "lossless", True) and not rows.is_floating_point():
            raise TypeError(f"expected rows of floating-point numbers for {each}, got {rows.dtype}; take Exact()")
    group = group or dist.distributed_c10d._get_default_group()
    exchange, counters = exchange_of(group), COUNTERS.setdefault(group, DecidingCounters())
    error = _error_of(rows, splits, exchange.size)
    numbers = [-1] * exchange.size if error else [index(each) for each in splits]
    needs_gradient = rows.requires_grad and torch.is_grad_enabled()
    like = checksum(f"{name} {rows.dtype} {tuple(rows.shape[1:])} {needs_gradient}")
    # The others wait for the numbers of this rank in any case.
    come = exchange.submit(lambda: exchange.swap_numbers(numbers, like)).result()
    if error:
        raise error
    if min(come) < 0:
        raise ExchangeError(f"rank {exchange.ranks[come.index(min(come))]} has splits that do not fit its rows")
    ways = [
        (choice, counters.row(name, direction), counters.auto(direction, name))
        for choice, direction in ((codec, "all_to_all"), (backward, "all_to_all, backward"))
    ]
    return _Swap.apply(rows, numbers, come, exchange, ways), come


def _error_of(rows: Tensor, splits: Sequence[int], size: int) -> Exception | None:
    """What is wrong with the splits of this rank."""
    expected = f"expected {size} numbers of rows for a tensor {tuple(rows.shape)}, got"
    try:
        found = [index(each) for each in splits]
    except TypeError as error:
        return TypeError(f"{expected} {splits!r}: {error}")
    if len(found) != size or min(found) < 0 or rows.dim() == 0 or sum(found) != len(rows):
        return ValueError(f"{expected} {found}")
    return None


class _Swap(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, rows: Tensor, splits: list[int], come: list[int], exchange: Exchange, ways: Any) -> Tensor:
        there, ctx.back = ways
        ctx.splits, ctx.come, ctx.exchange = splits, come, exchange
        return _swapped(rows, splits, come, exchange, *there)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return (_swapped(gradient, ctx.come, ctx.splits, ctx.exchange, *ctx.back), None, None, None, None)


def _swapped(
    rows: Tensor, splits: list[int], come: list[int], exchange: Exchange, choice: Choice, row: Row, auto: Auto
) -> Tensor:
    received = rows.new_empty(sum(come), *rows.shape[1:])
    flat = [part.reshape(-1) for part in rows.contiguous().split(splits)]
    outs = [part.view(-1) for part in received.split(come)]
    exchange.submit(lambda: swap(next_call(exchange, choice, row, auto), flat, outs)).result()
    return received


_EXCHANGES: WeakKeyDictionary[dist.ProcessGroup, Exchange] = WeakKeyDictionary()


def exchange_of(group: dist.ProcessGroup) -> Exchange:
    """One for all calls on a group, which ends with it."""
    if group not in _EXCHANGES:
        ranks = dist.get_process_group_ranks(group)
        _EXCHANGES[group] = exchange = Exchange(ranks, timeout_of(group), absent="called all_to_all")
        finalize(group, exchange.close).atexit = False
    return _EXCHANGES[group]
