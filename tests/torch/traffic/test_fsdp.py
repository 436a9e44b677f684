"""Exact differences in FSDP2: parameters have the bits that they have without."""

from __future__ import annotations

import gc
import hashlib
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from tensorwire.torch import traffic
from tests.support.ranks import Ranks
from tests.support.sharded_models import (
    Case,
    attached,
    digest,
    loss_of,
    optimizer_of,
    replicas,
    sharded,
    train,
    train_alone,
    train_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

CASES = {
    "resharded": Case(),
    "not resharded": Case(reshard=False),
    "resharded to a smaller group": Case(reshard=2),
    "asynchronous": Case(unshard_async=True),
    "asynchronous, not resharded": Case(reshard=False, unshard_async=True),
    "asynchronous, to a smaller group": Case(reshard=2, unshard_async=True),
    "FP32": Case(mixed_precision=False),
    "several dtypes in one message": Case(mixed_precision=False, frozen=True, frozen_dtype=torch.bfloat16),
    "frozen": Case(frozen=True),
    "tied": Case(tied=True),
    "accumulated and clipped": Case(accumulate=3, clip=0.1),
    "replicated": Case(replicated=True),
    "offloaded": Case(offload=True),
    "foreach": Case(adamw="foreach"),
    "parameter by parameter": Case(adamw="one"),
}


def _with_and_without(case: Case, steps: int) -> bool:
    return train(case, traffic.attach_fsdp, steps) == train_alone(case, steps)


SLOW = (
    "resharded to a smaller group",
    "asynchronous, not resharded",
    "FP32",
    "frozen",
    "foreach",
    "parameter by parameter",
)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=pytest.mark.slow if name in SLOW else ()) for name, case in CASES.items()],
)
def test_parameters_have_the_bits_of_fsdp2(ranks: Ranks, two: Ranks, case: Case) -> None:
    """Groups within groups take four ranks."""
    jobs = ranks if case.replicated or case.reshard == 2 else two
    assert jobs.run(_with_and_without, case, 3) == [True] * jobs.size


@pytest.mark.slow
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("unshard_async", [True, False])
def test_parameters_have_the_bits_of_fsdp2_after_200_steps(ranks: Ranks, reshard: bool, unshard_async: bool) -> None:
    case = Case(reshard=reshard, unshard_async=unshard_async)
    assert ranks.run(_with_and_without, case, 200, seconds=250) == [True] * 4


def _leave_in_the_middle() -> bool:
    found = []
    with attached(Case()) as (model, attachment, train_by):
        for step in range(3):
            if step == 2:
                attachment.detach()
                attachment.detach()
            train_by(step)
            found.append(digest(model))
    return found == train_alone(Case(), 3)


def _resume_from_a_state_dict_of_fsdp2() -> bool:
    case = Case()
    model = sharded(case)
    optimizer = optimizer_of(model, case)
    attachment = traffic.attach_fsdp(model)
    for step in range(2):
        train_step(model, optimizer, case, step)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    attachment.detach()
    saved: list[Any] = [weights, state]
    dist.broadcast_object_list(saved, src=0)  # only rank 0 has them whole

    again = sharded(case, seed=1)
    optimizer = optimizer_of(again, case)
    attachment = traffic.attach_fsdp(again)
    set_state_dict(again, optimizer, model_state_dict=saved[0], optim_state_dict=saved[1], options=options)
    for step in range(2, 4):
        train_step(again, optimizer, case, step)
    attachment.detach()
    return digest(again) == train_alone(case, 4)[-1]


def _gathered(model: Any) -> str:
    found = hashlib.sha256()
    for name, module in model.named_modules():
        if name in ("", "blocks.0", "blocks.1"):
            handle = module.unshard(async_op=True)
            handle.wait()
    for each in model.parameters():
        # A copy: memory that NumPy has seen cannot be freed by FSDP2.
        found.update(each.detach().clone().view(torch.uint8).numpy().tobytes())
    for module in (model, *model.blocks):
        module.reshard()
    return found.hexdigest()


def _fill_with_any_bits(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed + 10 * dist.get_rank())
    for each in model.parameters():
        local = each.to_local().detach()  # type: ignore[attr-defined]
        local.view(torch.int32).random_(-(2**31), 2**31 - 1, generator=generator)


def _gather_any_bits() -> bool:
    """NaNs with their payloads, infinities, zeros of both signs; some stay from call to call."""
    model = sharded(Case(mixed_precision=False))
    plain = []
    for seed in (1, 2, 2):
        _fill_with_any_bits(model, seed)
        plain.append(_gathered(model))
    attachment = traffic.attach_fsdp(model)
    coded = []
    for seed in (1, 2, 2):
        _fill_with_any_bits(model, seed)
        coded.append(_gathered(model))
    attachment.detach()
    return coded == plain


def _gather_of_changing_sizes() -> list[str]:
    """What FSDP2 does with a parameter whose shape or dtype changes, without the parameter."""
    rank, size = dist.get_rank(), dist.get_world_size()
    wrong = []
    with attached(Case()) as (model, _, _):
        comm = model._get_fsdp_state()._fsdp_param_groups[0]._all_gather_comm
        for dtype in (torch.bfloat16, torch.float32, torch.uint8, torch.bfloat16):
            for numel in (8, 1, 0, 333, 8):
                buffer = comm.allocate((size * numel,), dtype=dtype, device=torch.device("cpu"))
                shards = [torch.arange(numel).add(7 * each).to(dtype) for each in range(size)]
                own = buffer.narrow(0, rank * numel, numel).copy_(shards[rank])
                comm(output_tensor=buffer, input_tensor=own, group=dist.group.WORLD)
                if not torch.equal(buffer, torch.cat(shards)):
                    wrong.append(f"{dtype} {numel}")
    return wrong


def _part_of_a_model() -> tuple[bool, set[str]]:
    case = Case()
    model = sharded(case)
    optimizer = optimizer_of(model, case)
    attachment = traffic.attach_fsdp(model.blocks)
    for step in range(3):
        train_step(model, optimizer, case, step)
    named = {row.tensor for row in traffic.counters(model.blocks)}
    attachment.detach()
    return attachment.step == 3 and digest(model) == train_alone(case, 3)[-1], named


def _two_models() -> bool:
    cases = [Case(), Case(reshard=False, rate=1e-2)]
    with attached(cases[0]) as (first, _, train_first), attached(cases[1]) as (second, _, train_second):
        for step in range(3):
            train_first(step)
            train_second(step)
    return [digest(first), digest(second)] == [train_alone(case, 3)[-1] for case in cases]


def _attach_while_parameters_are_whole() -> tuple[int, bool]:
    """After an evaluation, the root of FSDP2 keeps its parameters gathered."""
    case = Case(reshard=False)
    model = sharded(case)
    optimizer = optimizer_of(model, case)
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long))
    attachment = traffic.attach_fsdp(model)
    for step in range(3):
        train_step(model, optimizer, case, step)
    attachment.detach()
    return attachment.step, digest(model) == train_alone(case, 3)[-1]


def _detach_while_work_is_pending() -> bool:
    model = sharded(Case())
    plain = _gathered(model)
    attachment = traffic.attach_fsdp(model)
    for module in (model, *model.blocks):
        module.unshard(async_op=True)
    attachment.detach()
    return _gathered(model) == plain


def _one_rank() -> bool:
    return _with_and_without(Case(), 3)


def _train_and_stay_attached() -> int:
    case = Case()
    model = sharded(case)
    traffic.attach_fsdp(model)
    train_step(model, optimizer_of(model, case), case, 0)
    return len(replicas(model))


def _detach_when_torch_distributed_has_ended() -> bool:
    attachment = traffic.attach_fsdp(sharded(Case()))
    dist.barrier()
    dist.destroy_process_group()
    attachment.detach()
    return True


@pytest.mark.xdist_group("ranks")
def test_a_group_of_one_rank_and_the_end_of_a_process_that_never_detached() -> None:
    with Ranks(1) as alone:
        assert alone.run(_one_rank) == [True]
    with Ranks(2) as pair:
        assert pair.run(_train_and_stay_attached) == [3, 3]
        assert pair.end(seconds=10) == [0, 0]
    with Ranks(2) as pair:
        assert pair.run(_detach_when_torch_distributed_has_ended) == [True, True]


def _inference_first() -> bool:
    """Whether a first forward in inference mode gives what it gives under FSDP2 alone."""
    found = []
    for attach in (None, traffic.attach_fsdp):
        model = sharded(Case())
        attachment = None if attach is None else attach(model)
        with torch.inference_mode():
            found.append([loss_of(model, step).item() for step in range(2)])
        if attachment is not None:
            attachment.detach()
    return found[0] == found[1]


def _drop_models_without_detaching() -> list[bool]:
    """Whether models that nobody has any longer are gone, though nobody has detached."""
    case, found = Case(), []
    for _ in range(2):
        model = sharded(case)
        traffic.attach_fsdp(model)
        train_step(model, optimizer_of(model, case), case, 0)
        found.append(weakref.ref(model))
        del model
    gc.collect()
    return [each() is None for each in found]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (_leave_in_the_middle, True),
        (_resume_from_a_state_dict_of_fsdp2, True),
        (_gather_any_bits, True),
        (_gather_of_changing_sizes, []),
        (_part_of_a_model, (True, {"0", "1"})),
        (_two_models, True),
        (_attach_while_parameters_are_whole, (3, True)),
        (_detach_while_work_is_pending, True),
        (_inference_first, True),
        (_drop_models_without_detaching, [True, True]),
    ],
)
def test_what_each_rank_finds(two: Ranks, job: Callable[[], Any], expected: Any) -> None:
    assert two.run(job) == [expected] * 2
