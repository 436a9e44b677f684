"""Weights through a lossy codec: all ranks hold the same ones, which stay close to the parameters of the optimizer."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from tensorwire.torch import traffic
from tensorwire.torch.traffic.codecs.codec import Raw
from tests.support.sharded_models import Case, attached, loss_of, optimizer_of, replicas, sharded, train, train_step

if TYPE_CHECKING:
    from tensorwire.torch.traffic.codecs.codec import Codec
    from tests.support.ranks import Ranks

GRID = traffic.Grid(4, 2048, rounding="stochastic")


@dataclass(frozen=True)
class Direct(traffic.Grid):
    """The contrast: weights themselves, and not what has changed in them."""

    def encode(self, tensor: torch.Tensor, base: torch.Tensor | None = None, key: int = 0) -> torch.Tensor:
        return super().encode(tensor, None, key)

    def decode(self, message: torch.Tensor, out: torch.Tensor, base: torch.Tensor | None = None) -> None:
        super().decode(message, out, None)


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.view(torch.uint8).numpy().tobytes())


def _buffers(model: Any) -> dict[str, int]:
    return {
        f"{name} {i}": _checksum(each.buffer) for name, kept in replicas(model).items() for i, each in enumerate(kept)
    }


def _same_on_all_ranks(case: Case) -> bool:
    """In each step, after forward and after backward; backward leaves weights as they were."""
    model = sharded(case)
    optimizer = optimizer_of(model, case)
    attachment = traffic.attach_fsdp(model, weights=GRID)
    fine = True
    for step in range(3):
        loss = loss_of(model, step)
        forward = _buffers(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, _buffers(model))
        fine &= found.count(found[0]) == len(found) and forward.items() <= found[0].items()
    attachment.detach()
    return fine


CASES = {
    "resharded": Case(),
    "not resharded": Case(reshard=False),
    "asynchronous": Case(unshard_async=True),
    "replicated": Case(replicated=True),
    "accumulated": Case(accumulate=2),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_replicas_stay_the_same_on_all_ranks(ranks: Ranks, two: Ranks, case: Case) -> None:
    jobs = ranks if case.replicated else two
    assert jobs.run(_same_on_all_ranks, case) == [True] * jobs.size


def _there_and_back(between: Codec) -> bool:
    """A shard that a lossy codec was given comes back after another one that travelled bit for bit."""
    codecs: list[Codec] = [GRID, GRID, between, GRID]  # the first one has nothing to be relative to, and is exact
    rank, numel = dist.get_rank(), 64
    with attached(Case(), weights=lambda _, step: codecs[step]) as (model, attachment, _):
        comm = model._get_fsdp_state()._fsdp_param_groups[0]._all_gather_comm
        for step, value in enumerate((0.0, 1.0, 5.0, 1.0)):
            attachment.step = step
            buffer = comm.allocate((2 * numel,), dtype=torch.float32, device=torch.device("cpu"))
            own = buffer.narrow(0, rank * numel, numel).fill_(value)
            comm(output_tensor=buffer, input_tensor=own, group=dist.group.WORLD)
    return bool((buffer - 1).abs().max() < 0.7)  # a step of 4-bit codes of the difference is 4 / 7


@pytest.mark.parametrize("between", [traffic.Exact(), Raw()], ids=["exact", "raw"])
def test_weights_that_come_back_after_a_step_without_the_codec(two: Ranks, between: Codec) -> None:
    assert two.run(_there_and_back, between) == [True] * 2


def _backward_in_a_smaller_group() -> bool:
    """It has the weights of forward, which were quantized once."""
    fine, seen = True, {}

    def look(module: Any, *_: Any) -> None:
        seen[module] = [each.detach().clone() for each in module.parameters()]

    def compare(module: Any, *_: Any) -> None:
        nonlocal fine
        fine &= all(torch.equal(*pair) for pair in zip(seen[module], module.parameters(), strict=True))

    with attached(Case(reshard=2), weights=GRID) as (model, _, train_by):
        for block in model.blocks:
            block.up.register_forward_hook(look)
            block.up.register_full_backward_pre_hook(compare)
        for step in range(2):
            train_by(step)
    return fine and len(seen) == 2


def test_backward_in_a_smaller_group_has_the_weights_of_forward(ranks: Ranks) -> None:
    assert ranks.run(_backward_in_a_smaller_group) == [True] * 4


def _distances(codec: traffic.Grid, steps: int) -> dict[int, float]:
    """|copy - master| / |master| over all modules, after some of the steps."""
    case = Case()
    model = sharded(case)
    optimizer = optimizer_of(model, case)
    attachment = traffic.attach_fsdp(model, weights=codec)
    found = {}
    for step in range(steps):
        train_step(model, optimizer, case, step)
        if (step + 1) % 10 == 0:
            masters = [each.to_local().detach().clone() for each in model.parameters()]
            with torch.no_grad():
                loss_of(model, step)  # gathers what the last step has made
            wrong = whole = 0.0
            for module in (model, *model.blocks):
                module.unshard()
            rank, size = dist.get_rank(), dist.get_world_size()
            for master, copy in zip(masters, model.parameters(), strict=True):
                rows = -(-copy.shape[0] // size)
                part = copy.detach()[rank * rows : rank * rows + master.shape[0]].float()
                wrong += float((part - master).square().sum())
                whole += float(master.square().sum())
            for module in (model, *model.blocks):
                module.reshard()
            sums = torch.tensor([wrong, whole])
            dist.all_reduce(sums)
            found[step + 1] = float((sums[0] / sums[1]).sqrt())
    attachment.detach()
    return found


@pytest.mark.slow
def test_weights_stay_close_to_the_parameters(ranks: Ranks) -> None:
    """Errors do not add up. BF16 by itself rounds by 2^-9 at most; what is quantized is the change of one step."""
    found = ranks.run(_distances, GRID, 30)[0]
    direct = ranks.run(_distances, Direct(4, 2048, rounding="stochastic"), 10)[0]
    assert max(found.values()) < 0.01
    assert found[30] < 1.5 * found[10]
    assert direct[10] > 0.1


def _mixed_dtypes() -> bool:
    """Bytes of several dtypes are no numbers that one could quantize: they travel exactly."""
    case = Case(mixed_precision=False, frozen=True, frozen_dtype=torch.bfloat16)
    with attached(case, weights=GRID) as (model, _, train_by):
        for step in range(2):
            train_by(step)
        model.reshard()
        expected = [model.embedding.weight.full_tensor(), model.head.weight.full_tensor()]
        model.unshard()
        return torch.equal(model.embedding.weight, expected[0]) and torch.equal(model.head.weight, expected[1])


def test_messages_of_several_dtypes_are_exact(two: Ranks) -> None:
    assert two.run(_mixed_dtypes) == [True] * 2


def _reproducible() -> bool:
    attach = lambda model: traffic.attach_fsdp(model, weights=GRID, gradients=GRID)  # noqa: E731
    return train(Case(), attach, 3) == train(Case(), attach, 3)


def test_random_numbers_are_the_same_in_each_run(two: Ranks) -> None:
    assert two.run(_reproducible) == [True] * 2
