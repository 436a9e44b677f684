"""Messages of unlike sizes between the ranks of a process group.

Sizes travel first, in a collective of their own, and are checked before memory is taken. Then the payload travels in
one `all_to_all_single` whose parts have these sizes. All of it runs in one thread on a process group of its own, since
collectives match by the order in which they begin. A rank whose encoder fails sends the error in place of its message:
no other rank waits for it, and every rank raises the same error.
"""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import IntEnum
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist

from ...errors import TensorwireError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from typing import Any

    from torch import Tensor

T = TypeVar("T")


class ExchangeError(TensorwireError, RuntimeError):
    """A rank could not do its part of an exchange. Every rank of the group raises it in the same call."""


class Kind(IntEnum):
    """What a message holds: the bytes of the tensor, what a codec made of them, nothing because the sender's tensor is
    the one that it sent before, or the text of an error."""

    RAW = 0
    CODED = 1
    SAME = 2
    ERROR = 3


class Message(NamedTuple):
    """What one rank sends to another one: a kind, and uint8 of one dimension in memory of the CPU."""

    kind: Kind
    payload: Tensor


MAX_ERROR_NBYTES = 4096
_RECORD = 3  # numbers that travel first: nbytes, kind, a checksum of what all ranks have to agree on


def checksum(text: str) -> int:
    return zlib.crc32(text.encode())


def error_message(error: BaseException) -> Message:
    text = f"{type(error).__name__}: {error}".encode()[:MAX_ERROR_NBYTES]
    return Message(Kind.ERROR, torch.frombuffer(bytearray(text), dtype=torch.uint8))


class Exchange:
    """A process group of its own, with the ranks of `group`, and the thread that uses it.

    All ranks of `group` make one at the same time, and submit the same calls in the same order.

    Attributes:
        ranks: the global ranks of the group, in its order.
        rank, size: this rank's place among them, and how many there are.
        transfer_seconds: how long the payload of the last call travelled, without the wait for the slowest rank.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.ranks = dist.get_process_group_ranks(group)
        self.rank, self.size = dist.get_rank(group), len(self.ranks)
        self._group = dist.new_group(self.ranks, backend="gloo", use_local_synchronization=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tensorwire-traffic")
        self._pid = os.getpid()
        self.transfer_seconds = 0.0
        self._failure: BaseException | None = None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run it in the thread, without gradients.

        Raises:
            RuntimeError: this is a fork of the process that made the exchange.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("expected the process that attached, got a fork of it; attach in the fork, too")
        return self._thread.submit(self._run, work)

    def _run(self, work: Callable[[], T]) -> T:
        if self._failure is not None:
            raise self._failure
        with torch.no_grad():
            return work()

    def fail(self, error: BaseException) -> None:
        """Give up, since this rank could not decode what the others could. Every later call here raises `error`; the
        others learn of it in their next exchange."""
        self._failure = error
        self._thread.submit(self._tell, error_message(error))

    def _tell(self, message: Message) -> None:
        with suppress(TensorwireError, RuntimeError):  # the error itself, or the others have gone
            self.gather(message, limit=0, configuration=0)

    def close(self) -> None:
        """End the thread. No rank may be in an exchange."""
        self._thread.shutdown()
        dist.destroy_process_group(self._group)

    def all_gather(self, output: Tensor, own: Tensor) -> None:
        """Torch's own, of tensors of one size. Its time includes the wait for the slowest rank."""
        began = perf_counter()
        dist.all_gather(list(output.chunk(self.size)), own, group=self._group)
        self.transfer_seconds = perf_counter() - began

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all ranks, the same bits on each of them."""
        own = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, group=self._group)
        return [sum(each) for each in zip(*(one.tolist() for one in found), strict=True)]

    def swap_numbers(self, numbers: Sequence[int]) -> list[int]:
        """One number for each rank, and theirs for this one."""
        mine = torch.tensor(numbers, dtype=torch.int64)
        found = torch.empty_like(mine)
        dist.all_to_all_single(found, mine, group=self._group)
        return [int(each) for each in found]

    def from_first(self, make: Callable[[], T]) -> T:
        """What it makes on the first rank, on all of them: plain data."""
        made = [make() if self.rank == 0 else cast("T", None)]
        dist.broadcast_object_list(made, src=self.ranks[0], group=self._group)
        return made[0]

    def agree(self, facts: Any) -> None:
        """Raise ValueError on all ranks if a rank has other facts, which are plain data."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, facts, group=self._group)
        for rank, other in zip(self.ranks, found, strict=True):
            if other != found[0]:
                raise ValueError(
                    f"expected the same on all ranks, got {found[0]} on rank {self.ranks[0]} and {other} on rank {rank}"
                )

    def gather(self, message: Message, *, limit: int, configuration: int) -> list[Message]:
        """The messages of all ranks in their order, the own one included.

        Args:
            message: what this rank sends to each other one.
            limit: the most bytes that a message may have.
            configuration: a checksum of what all ranks have to agree on.

        Raises:
            ExchangeError: a rank sent an error, another configuration, or more than `limit`.
        """
        record = torch.tensor([len(message.payload), message.kind, configuration])
        records = torch.empty(self.size * _RECORD, dtype=torch.int64)
        dist.all_gather(list(records.split(_RECORD)), record, group=self._group)
        sizes, kinds = self._checked(records.view(self.size, _RECORD), [limit] * self.size, configuration)
        return self._payloads([message] * self.size, sizes, kinds)

    def swap(self, messages: Sequence[Message], *, limits: Sequence[int], configuration: int) -> list[Message]:
        """What each rank has for this one, in their order; `messages` has one for each rank, this one included.

        Args:
            limits: the most bytes that the message of each rank may have.
            configuration: as for `gather`.

        Raises:
            ExchangeError: as for `gather`.
        """
        record = torch.tensor([[len(each.payload), each.kind, configuration] for each in messages])
        records = torch.empty_like(record)
        dist.all_to_all_single(records, record, group=self._group)
        sizes, kinds = self._checked(records, limits, configuration)
        return self._payloads(messages, sizes, kinds)

    def _checked(self, records: Tensor, limits: Sequence[int], configuration: int) -> tuple[list[int], list[Kind]]:
        """Sizes and kinds of the messages that come. Errors have their text yet to come, and are raised then."""
        rows = records.tolist()
        failed = any(kind == Kind.ERROR for _, kind, _ in rows)
        for rank, limit, (nbytes, kind, other) in zip(self.ranks, limits, rows, strict=True):
            most = MAX_ERROR_NBYTES if kind == Kind.ERROR else limit
            if not 0 <= nbytes <= most or kind not in tuple(Kind):
                raise ExchangeError(
                    f"expected a message of at most {most} bytes from rank {rank}, got {nbytes} of kind {kind}"
                )
            if other != configuration and not failed:
                raise ExchangeError(
                    f"rank {rank} sends another tensor, or has another codec for it",
                    advice="attach with the same arguments on all ranks",
                )
        return [nbytes for nbytes, _, _ in rows], [Kind(kind) for _, kind, _ in rows]

    def _payloads(self, messages: Sequence[Message], sizes: list[int], kinds: list[Kind]) -> list[Message]:
        others = [each.payload for rank, each in enumerate(messages) if rank != self.rank]
        sent = [0 if rank == self.rank else len(each.payload) for rank, each in enumerate(messages)]
        sizes[self.rank] = 0
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        outgoing = torch.cat(others) if others else torch.empty(0, dtype=torch.uint8)
        began = perf_counter()  # all ranks have come: they have told their sizes
        dist.all_to_all_single(received, outgoing, sizes, sent, group=self._group)
        self.transfer_seconds = perf_counter() - began
        found = [Message(kind, payload) for kind, payload in zip(kinds, received.split(sizes), strict=True)]
        found[self.rank] = messages[self.rank]
        for rank, each in zip(self.ranks, found, strict=True):
            if each.kind == Kind.ERROR:
                raise ExchangeError(
                    f"rank {rank} could not send: {bytes(each.payload.numpy()).decode(errors='replace')}"
                )
        return found
