"""Collectives whose messages a codec makes. They run in the thread of an exchange.

Sums are in FP32, or in FP64 where the tensors are, and in the order of the ranks, so that they do not depend on who
sends first. With a lossless codec the result has the bits of the same collective with raw messages.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ...errors import BaseMismatchError, FormatError
from .codecs.codec import Raw, bytes_of, same_bytes
from .codecs.exact import Exact
from .exchange import ExchangeError, Kind, Message, checksum, error_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from torch import Tensor

    from .codecs.codec import Codec
    from .counters import Row
    from .exchange import Exchange


@dataclass(frozen=True)
class Collective:
    """One collective of one tensor.

    Attributes:
        key: of random numbers: another one for each call and rank.
    """

    exchange: Exchange
    codec: Codec
    row: Row
    key: int = 0

    def encode(self, tensor: Tensor, base: Tensor | None = None, part: int = 0) -> Message:
        """The message, or what kept it from being made: the other ranks have to learn of that."""
        try:
            payload = self.codec.encode(tensor, base, self.key + part)
            if payload is not None and not _is_message(payload):
                raise TypeError(
                    f"expected a tensor of uint8 with one dimension from {self.codec}, got {payload!r:.100}"
                )
        except Exception as error:
            return error_message(error)
        if payload is None or len(payload) >= tensor.nbytes:
            return Message(Kind.RAW, bytes_of(tensor))
        return Message(Kind.CODED, payload)

    def decode(self, rank: int, message: Message, out: Tensor, raw: torch.dtype, base: Tensor | None = None) -> None:
        """Fill `out` with what came from `rank`; a raw message holds elements of dtype `raw`."""
        mine, other = (self.exchange.ranks[each] for each in (self.exchange.rank, rank))
        if message.kind == Kind.SAME:
            return
        try:
            if message.kind == Kind.CODED:
                self.codec.decode(message.payload, out, base)
            elif message.payload.numel() != out.numel() * raw.itemsize:
                raise FormatError(f"expected {out.numel()} elements, got {message.payload.numel()} bytes")
            else:
                out.copy_(message.payload.view(raw))
        except BaseMismatchError as error:
            raise self._give_up(
                BaseMismatchError(
                    f"rank {mine} holds other values of the shard of rank {other} than rank {other} sent",
                    tensor=self.row.tensor,
                    advice="the memory of one of them was changed; load the last checkpoint and attach again",
                )
            ) from error
        except Exception as error:
            raise self._give_up(
                ExchangeError(f"rank {mine} cannot decode what rank {other} sent: {error}", tensor=self.row.tensor)
            ) from error

    def _give_up(self, error: Exception) -> Exception:
        self.exchange.fail(error)
        return error

    def configuration(self, tensor: Tensor) -> int:
        return checksum(f"{self.row.tensor} {self.row.direction} {self.codec!r} {tensor.dtype}")

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        finally:
            setattr(self.row, what, getattr(self.row, what) + perf_counter() - began)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        with self.timed("wait_seconds"):
            yield
        self.row.wait_seconds -= self.exchange.transfer_seconds
        self.row.transfer_seconds += self.exchange.transfer_seconds

    def count(self, raw_nbytes: int, messages: Sequence[Message], *, measured: bool = True) -> None:
        """`measured`: the time that the messages travelled has no wait in it."""
        self.row.codec = str(self.codec)
        self.row.calls += 1
        self.row.raw_nbytes += raw_nbytes
        sent = sum(len(each.payload) for each in messages)
        self.row.sent_nbytes += sent
        if measured:
            self.row.link.add(sent, self.exchange.transfer_seconds)

    def others(self) -> list[int]:
        return [rank for rank in range(self.exchange.size) if rank != self.exchange.rank]


def _is_message(payload: object) -> bool:
    return isinstance(payload, torch.Tensor) and payload.dtype == torch.uint8 and payload.dim() == 1


class Replica:
    """The output of an all-gather that a rank keeps: the shards as the other ranks know that it has them.

    Differences are relative to it, so no rank holds another copy of the tensor. With a lossy codec all ranks, the owner
    of a shard too, hold what was decoded, so that errors do not add up from call to call (SDP4Bit's closed loop).

    Attributes:
        buffer: all shards, one behind the other.
    """

    def __init__(self, numel: int, dtype: torch.dtype, device: torch.device) -> None:
        with torch.inference_mode(False):  # it stays, and is written to in other modes
            self.buffer = torch.empty(numel, dtype=dtype, device=device)
        self._own: Tensor | None = None  # the shard of this rank as the others have it; None before the first call
        self._last: Tensor | None = None  # what a lossy codec was given last

    @property
    def kept_nbytes(self) -> int:
        return sum(each.nbytes for each in (self.buffer, self._own, self._last) if each is not None)

    def gather(self, call: Collective, shard: Tensor) -> None:
        """Bring all shards up to date; `shard` is this rank's new one, and may be its place in the buffer."""
        if not call.codec.lossless and (self._own is None or not shard.is_floating_point()):
            # There is nothing yet that it could be relative to, or these are the bytes of several dtypes.
            call = replace(call, codec=Exact())
        exchange = call.exchange
        if isinstance(call.codec, Raw):
            self._gather_raw(call, shard)
            return
        with call.timed("encode_seconds"):
            message = self._message(call, shard)
        with call.waiting():
            limit = shard.nbytes
            messages = exchange.gather(message, limit=limit, configuration=call.configuration(shard))
        with call.timed("decode_seconds"):
            parts = self.buffer.split(shard.numel()) if shard.numel() else [self.buffer] * exchange.size
            for rank in call.others():
                base = None if self._own is None else parts[rank]
                call.decode(rank, messages[rank], parts[rank], shard.dtype, base)
            if call.codec.lossless:
                self._keep(shard)
            elif self._own is not None:
                call.decode(exchange.rank, message, self._own, shard.dtype, self._own)
                self._last = shard.clone() if self._last is None else self._last.copy_(shard)
            parts[exchange.rank].copy_(self._own)
        call.count(shard.nbytes * len(call.others()), [message] * len(call.others()))

    def _message(self, call: Collective, shard: Tensor) -> Message:
        """Backward gathers once more what forward has. A second round of a lossy codec would change the weights between
        the two, so there is none for a shard that is still the same."""
        if self._last is not None and not call.codec.lossless and same_bytes(self._last, shard):
            return Message(Kind.SAME, shard.new_empty(0, dtype=torch.uint8))
        return call.encode(shard, self._own)

    def _keep(self, shard: Tensor) -> None:
        """The others have it bit for bit, and no longer what a lossy codec was given."""
        self._own, self._last = shard.clone() if self._own is None else self._own.copy_(shard), None

    def skip(self, call: Collective, shard: Tensor) -> None:
        """Torch itself fills the buffer. So the others do not know what this rank has of them."""
        self._own = self._last = None
        message = Message(Kind.RAW, bytes_of(shard))
        call.count(shard.nbytes * len(call.others()), [message] * len(call.others()), measured=False)

    def _gather_raw(self, call: Collective, shard: Tensor) -> None:
        """By the collective of torch."""
        measured = isinstance(call.codec, Raw) and call.codec.measured
        with call.waiting():
            call.exchange.all_gather(self.buffer, shard, call.configuration(shard), meet=measured)
        self._keep(shard)
        message = Message(Kind.RAW, bytes_of(shard))
        call.count(shard.nbytes * len(call.others()), [message] * len(call.others()), measured=measured)


def swap(call: Collective, chunks: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """All-to-all: `chunks` go to the ranks in their order, `outs` get what the ranks have for this one.

    This rank's own chunk is copied and never coded.
    """
    mine, dtype = call.exchange.rank, chunks[0].dtype
    with call.timed("encode_seconds"):
        messages = [
            Message(Kind.RAW, bytes_of(chunk)) if rank == mine else call.encode(chunk, part=rank)
            for rank, chunk in enumerate(chunks)
        ]
        failed = [each for each in messages if each.kind == Kind.ERROR]
        if failed:
            messages = failed[:1] * len(messages)
    with call.waiting():
        limits = [out.numel() * dtype.itemsize for out in outs]
        received = call.exchange.swap(messages, limits=limits, configuration=call.configuration(chunks[0]))
    with call.timed("decode_seconds"):
        for rank, (message, out) in enumerate(zip(received, outs, strict=True)):
            call.decode(rank, message, out, dtype)
    call.count(sum(chunks[rank].nbytes for rank in call.others()), [messages[rank] for rank in call.others()])


def share(call: Collective, chunk: Tensor, outs: Sequence[Tensor]) -> None:
    """All-gather of chunks of unlike sizes. The owner of a chunk has what was decoded of it, as the others have."""
    with call.timed("encode_seconds"):
        message = call.encode(chunk)
    with call.waiting():
        limit = max(out.nbytes for out in outs)
        messages = call.exchange.gather(message, limit=limit, configuration=call.configuration(chunk))
    with call.timed("decode_seconds"):
        for rank, (each, out) in enumerate(zip(messages, outs, strict=True)):
            call.decode(rank, each, out, chunk.dtype)
    call.count(chunk.nbytes * len(call.others()), [message] * len(call.others()))


def summed(call: Collective, chunks: Sequence[Tensor]) -> Tensor:
    """The sum of what all ranks have for this one: a reduce-scatter. Chunk i is the part of rank i."""
    own = chunks[call.exchange.rank]
    wide = torch.promote_types(own.dtype, torch.float32)
    dtype = own.dtype if call.codec.lossless else wide
    outs = [own.new_empty(own.numel(), dtype=dtype) for _ in chunks]
    swap(call, chunks, outs)
    total = own.new_zeros(own.numel(), dtype=wide)
    for out in outs:
        total += out
    return total


def all_reduce(call: Collective, tensor: Tensor, scale: float = 1.0) -> None:
    """`tensor` becomes the sum over all ranks, times `scale`, the same bits on all of them: a reduce-scatter and an
    all-gather (two messages, so a lossy codec quantizes twice)."""
    chunks = tensor.reshape(-1).tensor_split(call.exchange.size)
    own = (summed(call, chunks) * scale).to(tensor.dtype)
    share(call, own, chunks)


def scales(op: Any, size: int) -> tuple[float, float]:
    """What to multiply by before the sum and behind it."""
    if op == dist.ReduceOp.SUM:
        return 1.0, 1.0
    if op == dist.ReduceOp.AVG:
        return 1.0, 1.0 / size
    if op == dist.ReduceOp.PREMUL_SUM:
        return float(op.__getstate__()[1]), 1.0
    raise ValueError(f"expected a reduction by SUM, AVG or PREMUL_SUM, got {op}")
