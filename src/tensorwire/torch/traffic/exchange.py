"""Messages of unlike sizes between the ranks of a process group.

Sizes travel first, in a collective of their own, and are checked before memory is taken. Then the payload travels in
one `all_to_all_single` whose parts have these sizes. All of it runs in one thread on a process group of its own, since
collectives match by the order in which they begin. A rank whose encoder fails sends the error in place of its message:
no other rank waits for it, and every rank raises the same error.
"""

from __future__ import annotations

import os
import pickle
import zlib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import IntEnum
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from ..._ground.copies import not_copied
from ...errors import TensorwireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future
    from datetime import timedelta
    from typing import Any

    from torch import Tensor

T = TypeVar("T")


class ExchangeError(TensorwireError, RuntimeError):
    """A rank could not do its part of an exchange. Every rank of the group raises it in the same call."""


class _TooLargeError(ExchangeError):
    """A rank claims more than it may."""


class Kind(IntEnum):
    """What a message holds: the bytes of the tensor, what a codec made of them, nothing because the sender's tensor is
    the one that it sent before, the text of an error, or that of an error after which the sender sends nothing more."""

    RAW = 0
    CODED = 1
    SAME = 2
    ERROR = 3
    END = 4


class Message(NamedTuple):
    """What one rank sends to another one: a kind, and uint8 of one dimension where the tensor is that it is of."""

    kind: Kind
    payload: Tensor


_ERROR_NBYTES = 4096
_PLAIN_DATA_NBYTES = 1 << 24
_TELL_SECONDS = 10.0
_NUMBERS: defaultdict[tuple[int, ...], int] = defaultdict(int)  # of groups, by their ranks
_NOTHING = Message(Kind.RAW, torch.empty(0, dtype=torch.uint8))


def checksum(text: str) -> int:
    return zlib.crc32(text.encode())


def error_message(error: BaseException, kind: Kind = Kind.ERROR) -> Message:
    text = f"{type(error).__name__}: {error}".encode()[:_ERROR_NBYTES]
    return Message(kind, torch.frombuffer(bytearray(text), dtype=torch.uint8))


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long a rank of this group waits for the others, as it was made with; torch's default if it does not say."""
    try:
        found = group._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):  # it has no backend for the CPU, or one without options
        found = default_pg_timeout
    return cast("timedelta", found)


def _meet(name: str, ranks: list[int], timeout: timedelta, absent: str) -> None:
    """Wait until all ranks are about to make the group of this name. Gloo waits too, and names none that is missing.

    Raises:
        ExchangeError: some have not come in time; it says which.
    """
    store = dist.distributed_c10d._get_default_store()
    keys = {rank: f"{name} came {rank}" for rank in ranks}
    store.set(keys[dist.get_rank()], "")
    try:
        store.wait(list(keys.values()), timeout)
    except RuntimeError as error:
        missing = [str(rank) for rank, key in keys.items() if not store.check([key])]
        if not missing:
            raise
        who = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {', '.join(missing)} have"
        raise ExchangeError(
            f"{who} not {absent} within {timeout.total_seconds():g} s, and all ranks have to"
        ) from error


def _new_group(ranks: list[int], timeout: timedelta, absent: str) -> dist.ProcessGroup:
    """Made by these ranks alone, under a name that they have used for no other one. `dist.new_group` takes the number
    of groups that a rank is in for a name: it differs between ranks, and comes back when a group has gone, with what
    the store still knows of it."""
    c10d = dist.distributed_c10d
    name = f"tensorwire {checksum(str(ranks)):08x} {ranks[0]} {_NUMBERS[tuple(ranks)]}"
    _meet(name, ranks, timeout, absent)
    _NUMBERS[tuple(ranks)] += 1
    rank = ranks.index(dist.get_rank())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    group, _ = c10d._new_process_group_helper(
        len(ranks), rank, ranks, backend, c10d._get_default_store(), name, timeout=timeout
    )
    c10d._world.pg_group_ranks[group] = {each: place for place, each in enumerate(ranks)}
    return group


def _settled(device: torch.device) -> float:
    """The time, once all that this stream was asked for is done there."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return perf_counter()


class Exchange:
    """A process group of its own, and the thread that uses it.

    All of its ranks make one at the same time, and submit the same calls in the same order.

    Attributes:
        ranks: the global ranks, in their order in the group.
        rank, size: this rank's place among them, and how many there are.
        transfer_seconds: how long the payload of the last call travelled, without the wait for the slowest rank.
    """

    __reduce_ex__ = not_copied("a process group and a thread", "attach in the other process, too")

    def __init__(
        self,
        ranks: list[int],
        timeout: timedelta,
        fellows: Iterable[Exchange] | None = None,
        *,
        absent: str = "attached",
    ) -> None:
        """
        Args:
            timeout: how long a rank waits for the others.
            fellows: the exchanges that fail together with this one, itself among them; by default it alone.
            absent: what a rank has not done that does not come.

        Raises:
            ExchangeError: a rank does not come.
        """
        self.ranks = ranks
        self.rank, self.size = ranks.index(dist.get_rank()), len(ranks)
        self._group: dist.ProcessGroup | None = _new_group(ranks, timeout, absent)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tensorwire-traffic")
        self._pid = os.getpid()
        self.transfer_seconds = 0.0
        self._failure: BaseException | None = None
        self._telling: Thread | None = None
        self._may_have_failed = True
        self._fellows: Iterable[Exchange] = (self,) if fellows is None else fellows

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run it in the thread, without gradients.

        Raises:
            RuntimeError: this is a fork of the process that made the exchange.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("expected the process that attached, got a fork of it; attach in the fork, too")
        before = torch.cuda.current_stream().record_event() if torch.cuda.is_initialized() else None
        return self._thread.submit(self._run, work, torch.is_inference_mode_enabled(), before)

    def _run(self, work: Callable[[], T], inference: bool, before: torch.cuda.Event | None) -> T:
        """In the mode of the caller, whose tensors may be written to in no other one; behind what the caller has asked
        of its stream. What is asked of a device here is done when this returns."""
        if self._failure is not None:
            text = f"{type(self._failure).__name__}: {self._failure}"
            raise ExchangeError(f"an earlier exchange failed: {text}") from self._failure
        with torch.inference_mode(inference), torch.no_grad():
            if before is None:
                return work()
            with torch.cuda.device(before.device):
                torch.cuda.current_stream().wait_event(before)
                try:
                    return work()
                finally:
                    torch.cuda.current_stream().synchronize()

    def fail(self, error: BaseException) -> None:
        """Give up, since this rank could not decode what the others could. Every later call here raises an error that
        names `error`; the others learn of it in their next exchange. Until then a thread waits for them that does not
        keep the process from ending."""
        for each in tuple(self._fellows):
            each._end(error)

    def _end(self, error: BaseException) -> None:
        self._failure = error
        self._telling = Thread(target=self._tell, args=(error_message(error, Kind.END),), daemon=True)
        self._telling.start()

    def _leave(self, error: ExchangeError) -> ExchangeError:
        """Give up in the middle of an exchange. The others may have found nothing wrong, and wait for this rank's
        payload: without its connections they fail at once."""
        for each in tuple(self._fellows):
            if each is not self:
                each._end(error)
        self._failure = error
        group, self._group = self._group, None
        dist.destroy_process_group(group)
        return error

    def _tell(self, message: Message) -> None:
        with suppress(RuntimeError, ValueError):  # the error itself, the others have gone, or torch.distributed has
            self._thread.submit(lambda: None).result()  # what is under way ends first
            self.gather(message, limit=0, configuration=0)

    def refuse(self, error: Exception) -> None:
        """Take part in the next exchange of the others with this error in place of a message. It raises on all ranks,
        here too."""
        self.gather(error_message(error), limit=0, configuration=0)

    def close(self) -> None:
        """End the thread. No rank may be in an exchange. Where this one has given up, the others hear of it first, or
        end their part."""
        if self._telling is not None:
            self._telling.join(_TELL_SECONDS)
        self._thread.shutdown()
        if self._group is not None:
            with suppress(ValueError):  # torch.distributed itself has ended
                dist.destroy_process_group(self._group)

    def all_gather(self, output: Tensor, own: Tensor, configuration: int, *, meet: bool) -> None:
        """Torch's own, of tensors of one size. With `meet` the ranks tell each other first that they are there. So they
        do behind a call whose messages a rank may not have understood, and where that may have been a call of another
        exchange: one that has given up is heard there alone. Without it the time is also that of waiting for the
        slowest rank."""
        if meet or self._may_have_failed or len(tuple(self._fellows)) > 1:
            message = Message(Kind.RAW, own.reshape(-1).view(torch.uint8))
            self._announced([message] * self.size, [own.nbytes] * self.size, configuration)
            self._may_have_failed = False
        began = _settled(own.device)
        dist.all_gather_into_tensor(output, own, group=self._group)
        self.transfer_seconds = _settled(own.device) - began

    def from_first(self, make: Callable[[], T]) -> T:
        """What it makes on the first rank, on all of them: plain data. If it raises there, all ranks do."""
        message = _NOTHING
        if self.rank == 0:
            try:
                message = Message(Kind.RAW, torch.frombuffer(bytearray(pickle.dumps(make())), dtype=torch.uint8))
            except Exception as error:
                message = error_message(error)
        first = self.gather(message, limit=_PLAIN_DATA_NBYTES, configuration=_PLAIN_DATA_NBYTES)[0]
        return cast("T", pickle.loads(first.payload.numpy().tobytes()))

    def agree(self, facts: dict[str, Any], error: Exception | None) -> Exception | None:
        """None if no rank has an error and all have the same facts, which are plain data by name. Else an error on each
        rank: its own, or a ValueError that says which rank has one, or which facts differ."""
        found: list[Any] = [None] * self.size
        text = None if error is None else f"{type(error).__name__}: {error}"
        dist.all_gather_object(found, (text, facts), group=self._group)
        for rank, (failed, other) in zip(self.ranks, found, strict=True):
            if failed is not None:
                return error or ValueError(f"rank {rank} could not do its part: {failed}")
            unlike = [name for name in facts if other.get(name) != found[0][1].get(name)]
            if unlike:
                first = found[0][1]
                texts = [
                    f"{name}: {first.get(name)!s:.200} on rank {self.ranks[0]}, {other.get(name)!s:.200} on rank {rank}"
                    for name in unlike
                ]
                return ValueError(f"expected the same on all ranks, got {'; '.join(texts)}")
        return None

    def gather(self, message: Message, *, limit: int, configuration: int) -> list[Message]:
        """As `swap`, with one message for all ranks, and the same limit on all of them."""
        return self._swapped([message] * self.size, [limit] * self.size, configuration)

    def swap(self, messages: Sequence[Message], *, limits: Sequence[int], configuration: int) -> list[Message]:
        """What each rank has for this one, in their order; `messages` has one for each rank, this one included.

        Args:
            limits: the most bytes that the message of each rank may have.
            configuration: a checksum of what all ranks have to agree on.

        Raises:
            ExchangeError: a rank sent an error, another configuration, or more than its limit.
        """
        try:
            return self._swapped(messages, limits, configuration)
        except _TooLargeError as error:
            raise self._leave(ExchangeError(str(error))) from None

    def _swapped(self, messages: Sequence[Message], limits: Sequence[int], configuration: int) -> list[Message]:
        rows = self._announced(messages, limits, configuration)
        self._may_have_failed = True  # all ranks know that of each other
        return self._payloads(messages, [row[0] for row in rows], [Kind(row[1]) for row in rows])

    def _announced(self, messages: Sequence[Message], limits: Sequence[int], configuration: int) -> list[list[int]]:
        """Size and kind, the first two numbers of a row, of what each rank has for this one."""
        rows = self._records([[len(each.payload), each.kind, configuration] for each in messages], messages[0])
        for rank, limit, (nbytes, kind, _) in zip(self.ranks, limits, rows, strict=True):
            if not 0 <= nbytes <= limit or kind not in tuple(Kind):
                raise _TooLargeError(
                    f"expected a message of at most {limit} bytes from rank {rank}, got {nbytes} of kind {kind}"
                )
        return rows

    def swap_numbers(self, numbers: Sequence[int], configuration: int) -> list[int]:
        """One number for each rank, and theirs for this one."""
        rows = self._records([[number, Kind.RAW, configuration] for number in numbers], _NOTHING)
        return [number for number, _, _ in rows]

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all ranks, the same bits on each of them."""
        own = torch.tensor(numbers, dtype=torch.float64).view(torch.uint8)
        found = self.gather(Message(Kind.RAW, own), limit=len(own), configuration=len(own))
        return [sum(each) for each in zip(*(one.payload.view(torch.float64).tolist() for one in found), strict=True)]

    def _records(self, rows: list[list[int]], own: Message) -> list[list[int]]:
        """The numbers that travel before the payload, the last of which all ranks have to agree on. Where a rank sends
        an error, its text takes the place of the payload."""
        mine = torch.tensor(rows)
        found = torch.empty_like(mine)
        dist.all_to_all_single(found, mine, group=self._group)
        rows = found.tolist()
        failed = [rank for rank, (_, kind, _) in enumerate(rows) if kind in (Kind.ERROR, Kind.END)]
        if not failed:
            for rank, (*_, configuration) in zip(self.ranks, rows, strict=True):
                if configuration != rows[self.rank][-1]:
                    raise ExchangeError(
                        f"rank {rank} sends another tensor, or has another codec for it",
                        advice="pass the same arguments on all ranks; rows need a gradient on all of them or on none",
                    )
            return rows
        text = torch.zeros(_ERROR_NBYTES, dtype=torch.uint8)
        if own.kind in (Kind.ERROR, Kind.END):
            text[: len(own.payload)] = own.payload
        texts = [torch.empty_like(text) for _ in rows]
        dist.all_gather(texts, text, group=self._group)
        said = texts[failed[0]].numpy().tobytes().rstrip(b"\0").decode(errors="replace")
        error = ExchangeError(f"rank {self.ranks[failed[0]]} could not do its part: {said}")
        if any(rows[rank][1] == Kind.END for rank in failed):
            self._failure = self._failure or error  # a rank that has given up keeps its own
        raise error

    def _payloads(self, messages: Sequence[Message], sizes: list[int], kinds: list[Kind]) -> list[Message]:
        others = [each.payload for rank, each in enumerate(messages) if rank != self.rank]
        sent = [0 if rank == self.rank else len(each.payload) for rank, each in enumerate(messages)]
        sizes[self.rank] = 0
        device = messages[self.rank].payload.device
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        outgoing = torch.cat(others) if others else torch.empty(0, dtype=torch.uint8, device=device)
        began = _settled(device)  # all ranks have come: they have told their sizes
        dist.all_to_all_single(received, outgoing, sizes, sent, group=self._group)
        self.transfer_seconds = _settled(device) - began
        found = [Message(kind, payload) for kind, payload in zip(kinds, received.split(sizes), strict=True)]
        found[self.rank] = messages[self.rank]
        return found
