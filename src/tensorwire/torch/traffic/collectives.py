"""Collectives whose messages a codec makes. They run in the thread of an exchange."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import torch

from ...errors import BaseMismatchError, FormatError
from .codecs.codec import bytes_of
from .codecs.exact import Exact
from .exchange import ExchangeError, Kind, Message, checksum, error_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .codecs.codec import Codec
    from .counters import Row
    from .exchange import Exchange

# What a frame may take beside the bytes of a tensor; no codec takes more than the tensor and this.
_SLACK_NBYTES = 4096


def encoded(codec: Codec, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Message:
    """The message, or what kept it from being made."""
    try:
        payload = codec.encode(tensor, base, key)
    except Exception as error:  # whatever it is, the other ranks have to learn of it
        return error_message(error)
    return Message(Kind.RAW, bytes_of(tensor)) if payload is None else Message(Kind.CODED, payload)


def decoded(codec: Codec, message: Message, out: Tensor, base: Tensor | None = None) -> None:
    if message.kind == Kind.RAW:
        if message.payload.numel() != out.nbytes:
            raise FormatError(f"expected {out.nbytes} bytes of the tensor, got {message.payload.numel()}")
        bytes_of(out).copy_(message.payload)
    else:
        codec.decode(message.payload, out, base)


class Replica:
    """The output of an all-gather that a rank keeps: the shards as the other ranks know that it has them.

    Differences are relative to it, so that no rank holds another copy of the tensor. With a lossy codec all ranks, the
    owner of a shard too, hold what was decoded, so that errors do not add up from call to call (SDP4Bit's closed loop).

    Attributes:
        buffer: all shards, one behind the other.
    """

    def __init__(self, numel: int, dtype: torch.dtype, device: torch.device) -> None:
        self.buffer = torch.empty(numel, dtype=dtype, device=device)
        self._own: Tensor | None = None  # the shard of this rank as the others have it; None before the first call

    @property
    def kept_nbytes(self) -> int:
        return self.buffer.nbytes + (0 if self._own is None else self._own.nbytes)

    def gather(self, exchange: Exchange, shard: Tensor, codec: Codec, row: Row, key: int = 0) -> None:
        """Bring all shards up to date; `shard` is this rank's new one, and may be its place in the buffer."""
        if self._own is None and not codec.lossless:
            codec = Exact()  # there is nothing to be lossily relative to
        began = perf_counter()
        message = encoded(codec, shard, self._own, key)
        sent = perf_counter()
        configuration = checksum(f"{row.tensor} {row.direction} {codec} {shard.dtype} {shard.numel()}")
        messages = exchange.gather(message, limit=shard.nbytes + _SLACK_NBYTES, configuration=configuration)
        arrived = perf_counter()
        own = shard.clone() if self._own is None else self._own
        parts = self.buffer.split(shard.numel()) if shard.numel() else [self.buffer] * exchange.size
        for rank, (each, part) in enumerate(zip(messages, parts, strict=True)):
            if rank != exchange.rank:
                self._decode(exchange, rank, codec, each, part, row.tensor)
        if codec.lossless:
            own.copy_(shard)
            parts[exchange.rank].copy_(shard)
        else:
            decoded(codec, message, own, own)
            parts[exchange.rank].copy_(own)
        self._own = own
        count(row, codec, shard.nbytes * (exchange.size - 1), len(message.payload) * (exchange.size - 1))
        row.kept_nbytes = self.kept_nbytes
        spend(row, began, sent, arrived)

    def _decode(self, exchange: Exchange, rank: int, codec: Codec, message: Message, part: Tensor, name: str) -> None:
        mine, other = exchange.ranks[exchange.rank], exchange.ranks[rank]
        try:
            decoded(codec, message, part, None if self._own is None else part)
        except BaseMismatchError as error:
            drifted = BaseMismatchError(
                f"rank {mine} holds other values of the shard of rank {other} than rank {other} sent",
                tensor=name,
                advice="the memory of one of them was changed; load the last checkpoint and attach again",
            )
            exchange.fail(drifted)
            raise drifted from error
        except (FormatError, ValueError) as error:
            damaged = ExchangeError(f"rank {mine} cannot decode what rank {other} sent: {error}", tensor=name)
            exchange.fail(damaged)
            raise damaged from error


def count(row: Row, codec: Codec, raw_nbytes: int, sent_nbytes: int) -> None:
    row.codec = repr(codec)
    row.calls += 1
    row.raw_nbytes += raw_nbytes
    row.sent_nbytes += sent_nbytes


def spend(row: Row, began: float, sent: float, arrived: float) -> None:
    row.encode_seconds += sent - began
    row.wait_seconds += arrived - sent
    row.decode_seconds += perf_counter() - arrived
