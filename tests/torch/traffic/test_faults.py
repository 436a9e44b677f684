"""Bad luck on one rank: all ranks raise instead of waiting, and the next step is right."""

from __future__ import annotations

import functools
import os
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tensorwire.torch import traffic
from tensorwire.torch.traffic.attach.all_to_all import exchange_of
from tensorwire.torch.traffic.exchange import Exchange, Kind, Message, timeout_of
from tests.support.processes import exit_code_of_child
from tests.support.sharded_models import Case, Model, attached, digest, loss_of, recover, replicas, train, train_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.ranks import Ranks


@dataclass(frozen=True)
class Faulty(traffic.Exact):
    """Fails on one rank, or makes what is no message, as long as somebody says so."""

    def encode(self, tensor: torch.Tensor, base: torch.Tensor | None = None, key: int = 0) -> torch.Tensor | None:
        if FAULT == ["raise"] and dist.get_rank() == 1:
            raise MemoryError("no room on this rank")
        if FAULT == ["no message"] and dist.get_rank() == 1:
            return torch.zeros(3)
        return super().encode(tensor, base, key)


FAULT: list[str] = []
STEPS = 3
TIMEOUT = timedelta(seconds=30)


def _step_that_fails(model: Any, train_by: Callable[[int], None], step: int) -> str:
    """The error; parameters stay as they were."""
    before = digest(model)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the caller looks at what it is
        train_by(step)
    model.zero_grad()
    recover(model)
    assert digest(model) == before
    return f"{raised.typename}: {raised.value}"


_CASE = Case(gradients=torch.bfloat16)
_EXACT: dict[tuple[Case, int | None], list[str]] = {}


def _fail_once(fault: str, options: dict[str, Any], case: Case = _CASE) -> tuple[str, bool]:
    found, text = [], ""
    with attached(case, **options) as (model, _, train_by):
        for step in range(STEPS):
            if step == 1:
                FAULT[:] = [fault]
                text = _step_that_fails(model, train_by, step)
                FAULT.clear()
            train_by(step)
            found.append(digest(model))
    return text, found == _hashes(case, options)


def _hashes(case: Case, options: dict[str, Any]) -> list[str]:
    """Without a fault. Gradients are summed in another order than gloo has."""
    if "gradients" not in options:
        return train_alone(case, STEPS)
    nodes = options.get("ranks_per_node")
    if (case, nodes) not in _EXACT:
        exact = traffic.Exact() if nodes is None else (traffic.Exact(), traffic.Exact())
        attach = functools.partial(traffic.attach_fsdp, gradients=exact, ranks_per_node=nodes)
        _EXACT[case, nodes] = train(case, attach, STEPS)
    return _EXACT[case, nodes]


@pytest.mark.parametrize("options", [{"weights": Faulty()}, {"gradients": Faulty()}], ids=["weights", "gradients"])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raise", "ExchangeError: rank 1 could not do its part: MemoryError: no room on this rank"),
        ("no message", "ExchangeError: rank 1 could not do its part: TypeError: expected a tensor of uint8"),
    ],
)
def test_an_encoder_that_fails_on_one_rank(two: Ranks, fault: str, expected: str, options: dict[str, Any]) -> None:
    answers = two.run(_fail_once, fault, options)
    assert len(set(answers)) == 1
    text, fine = answers[0]
    assert text.startswith(expected)
    assert fine


def test_an_encoder_that_fails_in_one_node(ranks: Ranks) -> None:
    """Ranks 2 and 3 are another node, which learns of it in the exchange between nodes."""
    first = "ExchangeError: rank 1 could not do its part: MemoryError: no room on this rank"
    options = {"gradients": (Faulty(), traffic.Exact()), "ranks_per_node": 2}
    answers = ranks.run(_fail_once, "raise", options)
    assert [text for text, _ in answers[:2]] == [first] * 2
    for rank in (2, 3):
        assert answers[rank][0] == f"ExchangeError: rank {rank - 2} could not do its part: {first}"
    assert all(fine for _, fine in answers)


def _choose(name: str, step: int) -> traffic.Exact:
    """Fails, or gives no codec, on one rank."""
    if FAULT == ["raise"] and dist.get_rank() == 1:
        raise KeyError(name)
    return None if FAULT == ["nothing"] and dist.get_rank() == 1 else traffic.Exact()  # type: ignore[return-value]


@pytest.mark.parametrize("options", [{"weights": _choose}, {"gradients": _choose}], ids=["weights", "gradients"])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [("raise", "KeyError: '"), ("nothing", "TypeError: expected a codec for ")],
)
def test_a_function_that_fails_on_one_rank(two: Ranks, fault: str, expected: str, options: dict[str, Any]) -> None:
    for text, fine in two.run(_fail_once, fault, options):
        assert text.startswith(f"ExchangeError: rank 1 could not do its part: {expected}")
        assert fine


def _choose_for_rows() -> str:
    FAULT[:] = ["raise"]
    rows = torch.ones(4, 3)
    with pytest.raises(traffic.ExchangeError) as raised:
        traffic.all_to_all(rows, [1] * 4, codec=_choose)
    FAULT.clear()
    assert torch.equal(traffic.all_to_all(rows, [1] * 4, codec=_choose)[0], rows)
    return str(raised.value)


def test_a_function_that_fails_on_one_rank_in_an_all_to_all(ranks: Ranks) -> None:
    assert ranks.run(_choose_for_rows) == ["rank 1 could not do its part: KeyError: 'rows'"] * 4


def _claim_too_much() -> tuple[str, list[int]]:
    exchange = Exchange(list(range(4)), TIMEOUT)
    mine = Message(Kind.CODED, torch.ones(101 if dist.get_rank() == 1 else 10, dtype=torch.uint8))
    with pytest.raises(traffic.ExchangeError) as raised:
        exchange.submit(lambda: exchange.gather(mine, limit=100, configuration=7)).result()
    again = exchange.submit(lambda: exchange.gather(mine, limit=101, configuration=7)).result()
    exchange.close()
    return str(raised.value), [int(each.payload.sum()) for each in again]


def test_a_message_that_is_larger_than_it_can_be(ranks: Ranks) -> None:
    text = "expected a message of at most 100 bytes from rank 1, got 101 of kind 1"
    assert ranks.run(_claim_too_much) == [(text, [10, 101, 10, 10])] * 4


def _claim_too_much_for_one() -> tuple[str, str]:
    """Rank 3 alone expects less than rank 1 has for it, and the others are already in the payload."""
    exchange = Exchange(list(range(4)), TIMEOUT)
    mine = [Message(Kind.CODED, torch.ones(10, dtype=torch.uint8))] * 4
    limits = [10, 9, 10, 10] if dist.get_rank() == 3 else [10] * 4

    def swap() -> list[Message]:
        return exchange.submit(lambda: exchange.swap(mine, limits=limits, configuration=7)).result()

    began = time.monotonic()
    with pytest.raises(RuntimeError) as first:
        swap()
    with pytest.raises(RuntimeError) as second:
        swap()
    assert time.monotonic() - began < TIMEOUT.total_seconds() / 2
    exchange.close()
    return str(first.value), str(second.value)


def test_a_message_that_is_larger_than_one_rank_alone_expects(ranks: Ranks) -> None:
    answers = ranks.run(_claim_too_much_for_one)
    text = "expected a message of at most 9 bytes from rank 1, got 10 of kind 1"
    assert answers[3] == (text, f"an earlier exchange failed: ExchangeError: {text}")
    for first, second in answers[:3]:
        assert "peer" in first
        assert "peer" in second


def _give_up_before_a_raw_gather() -> str:
    """The others are in the collective of torch, where nobody could tell them."""
    exchange = Exchange(list(range(4)), TIMEOUT)
    if dist.get_rank() == 2:
        exchange.fail(OSError("no ink"))
    with pytest.raises(traffic.ExchangeError) as raised:
        _gather_raw(exchange)
    exchange.close()
    return str(raised.value)


def _gather_raw(exchange: Exchange) -> None:
    whole = torch.empty(4 * 1000)
    exchange.submit(lambda: exchange.all_gather(whole, torch.ones(1000), configuration=7, meet=False)).result()


@patch("tensorwire.torch.traffic.exchange._TELL_SECONDS", 1.0)  # none of the others comes to the first exchange
def _give_up_in_a_fellow() -> str:
    """A call of one exchange fails, and the next one is a raw gather of the other, which has had one before."""
    fellows: list[Exchange] = []
    for _ in range(2):
        fellows.append(Exchange(list(range(4)), TIMEOUT, fellows))
    first, second = fellows
    _gather_raw(second)
    if dist.get_rank() == 2:
        first.fail(OSError("no ink"))
    with pytest.raises(traffic.ExchangeError) as raised:
        _gather_raw(second)
    for each in fellows:
        each.close()
    return str(raised.value)


def _give_up_and_leave() -> str:
    """Rank 2 ends its part at once, and the others come later."""
    exchange = Exchange(list(range(4)), TIMEOUT)
    if dist.get_rank() == 2:
        exchange.fail(OSError("no ink"))
        exchange.close()
        return ""
    time.sleep(0.5)
    with pytest.raises((RuntimeError, traffic.ExchangeError)) as raised:
        exchange.submit(lambda: exchange.sums([1.0])).result()
    exchange.close()
    return str(raised.value)


@pytest.mark.parametrize(
    ("give_up", "own"),
    [
        (_give_up_before_a_raw_gather, "an earlier exchange failed: OSError: no ink"),
        (_give_up_in_a_fellow, "an earlier exchange failed: OSError: no ink"),
        (_give_up_and_leave, ""),
    ],
)
def test_a_rank_that_gives_up_tells_the_others(ranks: Ranks, give_up: Callable[[], str], own: str) -> None:
    told = "rank 2 could not do its part: OSError: no ink"
    assert ranks.run(give_up) == [told, told, own, told]


def _timeouts() -> list[float]:
    """Seconds of the groups of exchanges: of a model, and of an all_to_all in a group with its own."""
    group = dist.new_group(timeout=timedelta(seconds=41))
    with attached(Case()) as (_, attachment, _):
        found = [*attachment._exchanges.values(), exchange_of(group)]
        seconds = [timeout_of(each._group).total_seconds() for each in found]
    dist.destroy_process_group(group)
    return seconds


def test_exchanges_wait_as_long_as_the_groups_that_they_stand_for(ranks: Ranks) -> None:
    assert ranks.run(_timeouts) == [[60.0, 41.0]] * 4


def _plain_data_of_the_first() -> tuple[dict[str, int], str]:
    exchange = Exchange(list(range(4)), TIMEOUT)
    found = exchange.submit(lambda: exchange.from_first(lambda: {"a": 10 + dist.get_rank()})).result()
    with pytest.raises(traffic.ExchangeError) as raised:
        exchange.submit(lambda: exchange.from_first(lambda: {}["missing"])).result()
    exchange.close()
    return found, str(raised.value)


def test_what_the_first_rank_cannot_make_is_an_error_on_all(ranks: Ranks) -> None:
    expected = "rank 0 could not do its part: KeyError: 'missing'"
    assert ranks.run(_plain_data_of_the_first) == [({"a": 10}, expected)] * 4


def _fail_under_ddp() -> tuple[str, bool]:
    results = []
    for fault in ("", "raise"):
        torch.manual_seed(0)
        model = DistributedDataParallel(Model().bfloat16())
        attachment = traffic.attach_ddp(model, gradients=Faulty())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        text = ""
        for step in range(3):
            if fault and step == 1:
                FAULT[:] = [fault]
                with pytest.raises(RuntimeError) as raised:
                    loss_of(model, step).backward()
                text = str(raised.value)
                FAULT.clear()
                optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([each.detach().clone() for each in model.parameters()])
        attachment.detach()
    return text, all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_an_encoder_that_fails_on_one_rank_under_ddp(two: Ranks) -> None:
    for text, fine in two.run(_fail_under_ddp):
        assert "ExchangeError: rank 1 could not do its part: MemoryError: no room on this rank" in text
        assert fine


class _Blind(traffic.Budget):
    """Cannot look at gradients in one step."""

    def observe(self, name: str, gradient: torch.Tensor) -> None:
        if FAULT:
            raise MemoryError("no room to look")
        super().observe(name, gradient)


def _fail_to_look() -> tuple[str, int]:
    model = DistributedDataParallel(Model())
    budget = _Blind(every=1)
    attachment = traffic.attach_ddp(model, gradients=budget)
    FAULT[:] = ["look"]
    with pytest.raises(RuntimeError) as raised:
        loss_of(model, 0).backward()
    FAULT.clear()
    for step in range(2):
        model.zero_grad()
        loss_of(model, step).backward()
        attachment.step += 1
    attachment.detach()
    return str(raised.value), len(budget._chosen)


def test_a_budget_that_fails_on_the_first_rank_is_an_error_on_all(two: Ranks) -> None:
    for text, chosen in two.run(_fail_to_look):
        assert "ExchangeError: rank 0 could not do its part: MemoryError: no room to look" in text
        assert chosen == len(list(Model().parameters()))


def _flip(model: Any, _: dict[str, Any]) -> None:
    part = replicas(model)["blocks.1"][0].buffer.chunk(2)[0]
    part.view(torch.int16)[3] ^= 1


def _make_stale(model: Any, old: dict[str, Any]) -> None:
    replicas(model)["blocks.1"][0].buffer.copy_(old["buffer"])


def _drift(spoil: Callable[[Any, dict[str, Any]], None]) -> tuple[list[str], bool]:
    """The errors of the step after rank 1's memory has changed and of the one after that; whether one can go on."""
    old: dict[str, Any] = {}
    with attached(Case()) as (model, _, train_by):
        for step in range(2):
            train_by(step)
            if step == 0:
                old["buffer"] = replicas(model)["blocks.1"][0].buffer.clone()
        if dist.get_rank() == 1:
            spoil(model, old)
        texts = [_step_that_fails(model, train_by, 2) for _ in range(2)]
    attachment = traffic.attach_fsdp(model)
    train_by(2)
    attachment.detach()
    return texts, digest(model) == train_alone(Case(), 3)[-1]


@pytest.mark.parametrize("spoil", [_flip, _make_stale])
def test_a_replica_that_drifted(two: Ranks, spoil: Callable[[Any, dict[str, Any]], None]) -> None:
    answers = two.run(_drift, spoil)
    for rank, (texts, fine) in enumerate(answers):
        first = "" if rank == 1 else "ExchangeError: rank 1 could not do its part: "
        for text, expected in zip(texts, (first, f"ExchangeError: an earlier exchange failed: {first}"), strict=True):
            assert text.startswith(f"{expected}BaseMismatchError: rank 1 holds other values of the shard of rank")
            assert "(tensor 'blocks.1')" in text
        assert fine


def _raise_in_forward() -> bool:
    found = []
    with attached(Case()) as (model, _, train_by):
        for step in range(2):
            if step == 1:
                hook = model.blocks[1].up.register_forward_hook(lambda *_: 1 / 0)
                assert _step_that_fails(model, train_by, step).startswith("ZeroDivisionError")
                hook.remove()
            train_by(step)
            found.append(digest(model))
    return found == train_alone(Case(), 2)


def test_an_exception_of_the_user_in_the_middle_of_forward(two: Ranks) -> None:
    assert two.run(_raise_in_forward) == [True] * 2


def test_errors_of_asynchronous_work_are_raised_as_they_are_and_once(two: Ranks) -> None:
    expected = "ExchangeError: rank 1 could not do its part: MemoryError: no room on this rank"
    answers = two.run(_fail_once, "raise", {"weights": Faulty()}, Case(unshard_async=True))
    assert answers == [(expected, True)] * 2


def _fork() -> int:
    with attached(Case()) as (model, _, _):
        child = os.fork()
        if child == 0:
            try:
                model(torch.zeros(1, 3, dtype=torch.long))
            except RuntimeError as error:
                os._exit(0 if "got a fork of it; attach in the fork" in str(error) else 1)
            os._exit(2)
        return exit_code_of_child(child, 20)


def test_a_fork_that_goes_on_training(two: Ranks) -> None:
    assert two.run(_fork) == [0] * 2


def _wait_for_rank_1() -> tuple[float, float, bool]:
    """Wall and CPU seconds of the step in which rank 1 stops."""
    wall = cpu = 0.0
    with attached(Case()) as (model, _, train_by):
        for step in range(3):
            if step == 2:
                dist.barrier()
                wall, cpu = time.monotonic(), time.process_time()
                if dist.get_rank() == 1:
                    os.kill(os.getpid(), signal.SIGSTOP)
            train_by(step)
            if step == 2:
                wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    return wall, cpu, digest(model) == train_alone(Case(), 3)[-1]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stopped_rank_is_waited_for_without_work(two: Ranks) -> None:
    two.run(dist.get_rank)
    two.begin(_wait_for_rank_1)
    deadline = time.monotonic() + 30
    while _state(two.pids[1]) != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.6)
    os.kill(two.pids[1], signal.SIGCONT)
    for wall, cpu, fine in two.results():
        assert wall >= 0.5
        assert cpu < 0.3
        assert fine
