"""What all attachments have: a name and a codec for each tensor, counters, exchanges, and a way back."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...._ground.copies import not_copied
from ...._ground.text import count, in_a_line
from ...._ground.version import __version__
from ..budget import Budget
from ..choice import DecidingCounters, chosen, is_codec
from ..collectives import Collective
from ..counters import Table
from ..exchange import Exchange, checksum, timeout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future
    from typing import Any

    from ..choice import Auto, Choice
    from ..codecs.codec import Codec
    from ..counters import Row


_log = logging.getLogger("tensorwire.torch.traffic")

_OF_FSDP = "take MixedPrecisionPolicy(param_dtype=torch.bfloat16), or attach without gradients="
_SUMS = {
    "all_reduce": "take BF16 parameters or torch.autocast, or detach()",
    "reduce_scatter": _OF_FSDP,
    "reduce_scatter in nodes": _OF_FSDP,
    "reduce_scatter of nodes": _OF_FSDP,
}
"""The directions in which gradients travel, and what to do where nothing is gained."""


class Attachment:
    """Codecs in the place of torch's collectives, until `detach()`.

    All ranks attach and detach between the same two steps.

    Attributes:
        step: how often the model's optimizer has stepped since; several that share the parameters count as one.
    """

    __reduce_ex__ = not_copied("process groups and threads", "attach to the other model")

    def __repr__(self) -> str:
        return in_a_line(
            self,
            type(self._model()).__name__,
            f"step {self.step}",
            count(len(self._exchanges), "exchange") if self._undo else "detached",
        )

    def __init__(self, model: torch.nn.Module) -> None:
        self.step = 0
        self._stepped: WeakSet[torch.optim.Optimizer] = WeakSet()  # in this step
        self.counters = DecidingCounters()
        self._model = ref(model)
        self._parameters = {id(each) for each in model.parameters()}
        self._exchanges: dict[tuple[int, ...], Exchange] = {}
        self._undo: list[Callable[[], None]] = [_call_behind_each_step(self)]

    def begin(self, groups: Iterable[list[int]], facts: dict[str, Any], prepare: Callable[[], None]) -> None:
        """On all ranks, or on none: what keeps one of them from it is raised on all.

        Args:
            groups: the ranks of each exchange.
            facts: what has to be the same on all of them, by name.
            prepare: what each rank does or checks by itself.

        Raises:
            ExchangeError: a rank has not attached within the time-out of the default process group.
        """
        error: Exception | None = None
        model = self._model()
        try:
            if model in _ATTACHED:
                raise ValueError("expected a model that nothing is attached to; detach() what is first")
            prepare()
        except Exception as found:
            error = found
        try:
            for exchange in dict.fromkeys(map(self.exchange, groups)):
                error = exchange.submit(partial(exchange.agree, {"tensorwire": __version__, **facts}, error)).result()
            if error is not None:
                raise error
        except BaseException:
            self.detach()
            raise
        _ATTACHED[model] = self

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has made a step. Several that share the parameters out make one of the model."""
        if not any(id(each) in self._parameters for group in optimizer.param_groups for each in group["params"]):
            return
        if not self._stepped or optimizer in self._stepped:
            self._stepped.clear()
            self.step += 1
            if self.step == 1 and dist.get_rank() == 0:
                self._say_what_saved_nothing()
        self._stepped.add(optimizer)

    def _say_what_saved_nothing(self) -> None:
        """Such as FP32 gradients. A codec that saves nothing looks as if it did."""
        for direction, advice in _SUMS.items():
            rows = [
                row for row in self.counters.rows() if row.direction == direction and not row.codec.startswith("Raw")
            ]
            if rows and all(row.sent_nbytes >= row.raw_nbytes > 0 for row in rows):
                _log.warning(
                    "%s: %s made no message of the first step smaller. A frame of gradients that were computed in FP32 "
                    "is hardly smaller; %s", direction, rows[0].codec, advice,
                )  # fmt: skip

    def exchange(self, ranks: list[int]) -> Exchange:
        """The exchange of these ranks, which all ask for it at the same time."""
        key = tuple(ranks)
        if key not in self._exchanges:
            timeout = timeout_of(dist.group.WORLD)
            self._exchanges[key] = Exchange(ranks, timeout, self._exchanges.values())
        return self._exchanges[key]

    def has_one_exchange(self) -> bool:
        """Whether all ranks are in each call."""
        return len(self._exchanges) == 1

    def levels(self, ranks: list[int], ranks_per_node: int) -> tuple[Exchange, Exchange]:
        """The exchanges of this rank's node, and of the ranks at its place in all nodes."""
        node, place = divmod(ranks.index(dist.get_rank()), ranks_per_node)
        first = node * ranks_per_node
        return self.exchange(ranks[first : first + ranks_per_node]), self.exchange(ranks[place::ranks_per_node])

    def codec(self, choice: Choice, exchange: Exchange, name: str, direction: str) -> Codec:
        """For the tensor in this step."""
        if choice == "auto":
            auto = self.counters.auto(direction, ranks=exchange.ranks)
            if auto.due(self.step):
                exchange.submit(lambda: auto.decide(exchange, self.step)).result()
            return auto.codec(self.step)
        return chosen(choice, name, self.step, exchange.size)

    def call(self, exchange: Exchange, codec: Codec, name: str, direction: str) -> Collective:
        row = self.counters.row(name, direction)
        # Replicas of a shard (HSDP) are gathered with the same random numbers, so that they stay the same.
        rank = exchange.rank if direction == "all_gather" else exchange.ranks[exchange.rank]
        return Collective(exchange, codec, row, _key(row, self.step, rank))

    def on_detach(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def detach(self) -> None:
        """Give torch its own collectives back. The second time it does nothing."""
        while self._undo:
            self._undo.pop()()
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges.clear()
        model = self._model()
        if model is not None and _ATTACHED.get(model) is self:
            del _ATTACHED[model]


def _call_behind_each_step(attachment: Attachment) -> Callable[[], None]:
    """Have all optimizers tell of their steps, and return what ends that. Torch holds the hook, which must keep
    no model that is out of use."""
    found = ref(attachment)

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if (each := found()) is not None:
            each.stepped(optimizer)

    return cast("Callable[[], None]", register_optimizer_step_post_hook(stepped).remove)


COUNTERS: WeakKeyDictionary[dist.ProcessGroup, DecidingCounters] = WeakKeyDictionary()
"""What travels in process groups that have a codec."""
_ATTACHED: WeakKeyDictionary[torch.nn.Module, Attachment] = WeakKeyDictionary()


def counters(of: torch.nn.Module | dist.ProcessGroup) -> Table:
    """What has travelled since something was attached: a list of rows, which prints as a table and stays as it is.

    Args:
        of: a model with an attachment, or a process group: for `all_to_all`, or made by a registered backend.

    Raises:
        ValueError: nothing is attached to it.
        TypeError: it is neither.
    """
    if not isinstance(of, (torch.nn.Module, dist.ProcessGroup)):
        raise TypeError(f"expected a model or a process group, got {of!r}")
    found = _ATTACHED.get(of) if isinstance(of, torch.nn.Module) else COUNTERS.get(of)
    if found is None:
        raise ValueError(
            "expected a model or group with an attachment, got one without; attach_fsdp or attach_ddp first"
        )
    rows = (found.counters if isinstance(found, Attachment) else found).rows()
    return Table(replace(row, link=replace(row.link)) for row in rows)


def as_future(done: Future[None], value: Any = None) -> torch.futures.Future[Any]:
    """The same for torch. Code in C++ learns of an error only from a callback that raises it, and raises a RuntimeError
    with its text."""
    ended: torch.futures.Future[None] = torch.futures.Future()
    done.add_done_callback(lambda _: ended.set_result(None))

    def result(_: Any) -> Any:
        done.result()
        return value

    return ended.then(result)


class CodedWork(dist.Work):  # type: ignore[misc]
    """Raises what the thread has raised, as it is and once: FSDP2 waits again when it recovers from the error. A Work
    that torch makes of a future would lose it."""

    def __init__(self, done: Future[None], result: Any = None) -> None:
        super().__init__()
        self._done, self._result = done, result
        self._raised = False

    def wait(self, timeout: Any = None) -> bool:
        if not self._raised:
            self._raised = self._done.exception() is not None
            self._done.result()
        return True

    def is_completed(self) -> bool:
        return self._done.done()

    def get_future(self) -> torch.futures.Future[Any]:
        return as_future(self._done, self._result)


def next_call(exchange: Exchange, choice: Choice, row: Row, auto: Auto) -> Collective:
    """The next collective of a tensor outside a model, where a step is a call: in the thread of the exchange, so that
    it is the same one on all ranks. `auto` decides where that is the choice."""
    if choice == "auto":
        if auto.due(calls := auto.calls()):
            auto.decide(exchange, calls)
        codec = auto.codec(calls)
    else:
        codec = chosen(choice, row.tensor, row.calls, exchange.size)
    return Collective(exchange, codec, row, _key(row, exchange.ranks[exchange.rank]))


def _key(row: Row, *others: int) -> int:
    """The key of the random numbers of a row's next call: the same in every process that is given the same."""
    return hash((checksum(f"{row.tensor} {row.direction}"), row.calls, *others)) & (1 << 62) - 1


def check_choice(choice: Any, what: str, *, several: bool = False, budget: bool = False) -> None:
    """Raise TypeError if it is no codec, function or "auto"; or a `Budget` that no gradients would reach."""
    codecs: Sequence[Any] = choice if several and isinstance(choice, tuple) else (choice,)
    for each in codecs:
        if isinstance(each, type):
            raise TypeError(f"expected a codec for {what}, got the class {each.__name__}; write {each.__name__}()")
        if isinstance(each, Budget) and not budget:
            raise TypeError(f"expected a codec for {what}, got {each}, which chooses for attach_ddp alone")
        if not callable(each) and not is_codec(each) and each != "auto":
            raise TypeError(f"expected a codec for {what}, a function of name and step, or 'auto', got {each!r}")


def described(choice: Any) -> str:
    """The same text on all ranks for the same choice."""
    return re.sub(" at 0x[0-9a-fA-F]+", "", str(choice))
