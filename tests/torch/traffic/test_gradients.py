"""The reduce-scatter of FSDP2 and the all-reduce of DDP: with `Exact` they have the bits of raw messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tensorwire.torch import traffic
from tensorwire.torch.traffic.codecs.codec import Raw
from tensorwire.torch.traffic.collectives import scales
from tests.support.sharded_models import Case, Model, attached, digest, log_of_traffic, loss_of, sharded, train

if TYPE_CHECKING:
    from tensorwire.torch.traffic.attach.attachment import Attachment
    from tests.support.ranks import Ranks

EXACT, RAW = traffic.Exact(), Raw()


def _trained(case: Case, gradients: Any, ranks_per_node: int | None) -> tuple[list[str], int, int]:
    """Hashes after each step; raw and sent bytes of the gradients."""
    counted: list[Attachment] = []

    def attach(model: Any) -> Attachment:
        counted.append(traffic.attach_fsdp(model, gradients=gradients, ranks_per_node=ranks_per_node))
        return counted[0]

    found = train(case, attach, 2)
    rows = [row for row in counted[0].counters.rows() if row.direction.startswith("reduce_scatter")]
    return found, sum(row.raw_nbytes for row in rows), sum(row.sent_nbytes for row in rows)


def _exact_and_raw(case: Case, levels: bool) -> tuple[bool, float, float]:
    exact, raw = ((EXACT, EXACT), (RAW, RAW)) if levels else (EXACT, RAW)
    nodes = 2 if levels else None
    one, raw_nbytes, sent_nbytes = _trained(case, exact, nodes)
    other, raw_too, sent_too = _trained(case, raw, nodes)
    return one == other and raw_nbytes == raw_too, sent_nbytes / raw_nbytes, sent_too / raw_nbytes


CASES = {
    "resharded": Case(gradients=torch.bfloat16),
    "accumulated": Case(gradients=torch.bfloat16, accumulate=2, clip=0.1, reshard=False),
    "replicated": Case(gradients=torch.bfloat16, replicated=True),
    "FP16": Case(gradients=torch.float16),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_exact_gradients_have_the_bits_of_raw_ones(ranks: Ranks, two: Ranks, case: Case) -> None:
    jobs = ranks if case.replicated else two
    for fine, exact, raw in jobs.run(_exact_and_raw, case, False):
        assert fine
        assert exact < 0.95
        assert raw == 1


def test_two_levels_have_the_bits_of_raw_ones(ranks: Ranks) -> None:
    for fine, _, raw in ranks.run(_exact_and_raw, Case(gradients=torch.bfloat16), True):
        assert fine
        assert raw == 1


def test_fp32_gradients_that_were_added_up_in_fp32_travel_raw(two: Ranks) -> None:
    for fine, exact, _ in two.run(_exact_and_raw, Case(gradients=torch.float32, accumulate=2), False):
        assert fine
        assert exact == 1


def _wide(gradients: Any) -> tuple[str, float]:
    """The hash after two steps of a model whose shards have some thousand elements, and the share of bytes sent."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 128))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    attachment = traffic.attach_fsdp(model, gradients=gradients)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        rows = torch.randn(16, 128, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        (model(rows).float() - rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    row = attachment.counters.row("root", "reduce_scatter")
    attachment.detach()
    return digest(model), row.sent_nbytes / row.raw_nbytes


def test_bf16_gradients_that_were_cast_to_fp32_travel_as_frames(two: Ranks) -> None:
    exact, raw = two.run(_wide, EXACT), two.run(_wide, RAW)
    for (one, sent), (other, _) in zip(exact, raw, strict=True):
        assert one == other
        assert sent < 1 / 2.7


def _mean_of_fsdp() -> float:
    """The greatest difference from the mean of the gradients of all ranks, as a part of the greatest gradient."""
    case = Case(mixed_precision=False)
    model, plain = sharded(case), Model()
    plain.load_state_dict({name: each.full_tensor() for name, each in model.state_dict().items()})
    loss_of(plain, 0).backward()
    attachment = traffic.attach_fsdp(model, gradients=EXACT)
    loss_of(model, 0).backward()
    attachment.detach()
    worst = 0.0
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        dist.all_reduce(one.grad, op=dist.ReduceOp.AVG)
        found = other.grad.full_tensor()  # type: ignore[attr-defined]
        worst = max(worst, float((found - one.grad).abs().max() / one.grad.abs().max()))
    return worst


def test_gradients_are_the_mean_over_all_ranks(two: Ranks) -> None:
    assert max(two.run(_mean_of_fsdp)) < 1e-5


def test_operations_that_are_sums() -> None:
    assert scales(dist.ReduceOp.SUM, 4) == (1, 1)
    assert scales(dist.ReduceOp.AVG, 4) == (1, 0.25)
    assert scales(dist._make_nccl_premul_sum(0.125), 4) == (0.125, 1)
    with pytest.raises(ValueError, match="expected a reduction by SUM, AVG or PREMUL_SUM"):
        scales(dist.ReduceOp.MAX, 4)


def _ddp(dtype: torch.dtype, gradients: Any, steps: int = 2) -> tuple[list[torch.Tensor], Attachment]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().to(dtype), bucket_cap_mb=0.004)
    attachment = traffic.attach_ddp(model, gradients=gradients)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        with model.no_sync():
            loss_of(model, step, 1).backward()
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    attachment.detach()
    return [each.detach() for each in model.parameters()], attachment


def _equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def _ddp_in_four_ways(dtype: torch.dtype) -> tuple[bool, float]:
    raw, _ = _ddp(dtype, RAW)
    exact, attachment = _ddp(dtype, EXACT)
    rows = attachment.counters.rows()
    for choice in (lambda name, step: EXACT, lambda name, step: RAW, "auto"):
        if not _equal(raw, _ddp(dtype, choice)[0]):
            return False, 0.0
    return _equal(raw, exact), sum(row.sent_nbytes for row in rows) / sum(row.raw_nbytes for row in rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_ddp_has_the_bits_of_raw_messages(two: Ranks, dtype: torch.dtype) -> None:
    for fine, sent in two.run(_ddp_in_four_ways, dtype):
        assert fine
        assert sent < 0.95 if dtype == torch.bfloat16 else sent == 1


def _warnings(dtype: torch.dtype, gradients: Any) -> list[str]:
    with log_of_traffic() as lines:
        _ddp(dtype, gradients)
    return lines


def test_where_no_message_is_smaller_rank_0_says_so_once(two: Ranks) -> None:
    for dtype, gradients in ((torch.bfloat16, EXACT), (torch.float32, RAW), (torch.float32, traffic.Grid(4, 128))):
        assert two.run(_warnings, dtype, gradients) == [[]] * 2
    first, *others = two.run(_warnings, torch.float32, EXACT)
    assert len(first) == 1
    assert first[0].startswith("all_reduce: Exact(profile='fast') made no message of the first step smaller.")
    assert others == [[]]


def _warnings_of_fsdp(mixed_precision: bool, gradients: Any, options: dict[str, Any]) -> list[str]:
    with (
        log_of_traffic() as lines,
        attached(Case(mixed_precision=mixed_precision), gradients=gradients, **options) as (_, _, train_by),
    ):
        train_by(0)
        train_by(1)
    return lines


def test_where_no_message_of_fsdp_is_smaller_rank_0_says_so_once(two: Ranks) -> None:
    for mixed, gradients in ((True, EXACT), (False, RAW), (False, traffic.Grid(4, 128)), (False, None)):
        assert two.run(_warnings_of_fsdp, mixed, gradients, {}) == [[]] * 2
    first, *others = two.run(_warnings_of_fsdp, False, EXACT, {})
    assert len(first) == 1
    assert first[0].startswith("reduce_scatter: Exact(profile='fast') made no message of the first step smaller.")
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16)" in first[0]
    assert others == [[]]
    first, _ = two.run(_warnings_of_fsdp, False, (traffic.Grid(4, 128), EXACT), {"ranks_per_node": 1})
    assert [line.partition(":")[0] for line in first] == ["reduce_scatter of nodes"]


def _leave_ddp() -> bool:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    attachment = traffic.attach_ddp(model)
    attachment.detach()
    loss_of(model, 0).backward()
    plain = DistributedDataParallel(Model())
    plain.load_state_dict(model.state_dict())
    loss_of(plain, 0).backward()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    close = all(torch.allclose(one.grad, other.grad, atol=1e-6) for one, other in pairs)
    with pytest.raises(ValueError, match="expected DDP without a communication hook"):
        traffic.attach_ddp(model)
    return close


def test_ddp_goes_on_by_itself_after_detach(two: Ranks) -> None:
    assert two.run(_leave_ddp) == [True] * 2


def _many_small() -> list[bool]:
    """Whether parameters too small for any codec have the bits of raw messages, with codecs of all kinds."""
    found = []
    for choice in (lambda name, step: EXACT, lambda name, step: traffic.Grid(4, 2048), traffic.Grid(4, 8192)):
        torch.manual_seed(0)
        model = nn.ModuleList(nn.Linear(2, 2).bfloat16() for _ in range(30))
        replicated = DistributedDataParallel(_Summed(model))
        attachment = traffic.attach_ddp(replicated, gradients=choice)
        replicated(torch.ones(4, 2, dtype=torch.bfloat16)).backward()
        rows = traffic.counters(replicated)
        found.append(all(row.sent_nbytes <= row.raw_nbytes for row in rows))
        attachment.detach()
    return found


class _Summed(nn.Module):
    def __init__(self, parts: nn.ModuleList) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([part(inputs).float().sum() for part in self.parts]).sum()


def test_what_no_codec_makes_smaller_travels_raw(two: Ranks) -> None:
    assert two.run(_many_small) == [[True] * 3] * 2
