"""A process group whose sums and gathers are coded, under torch.distributed and under tensor parallelism."""

from __future__ import annotations

import re
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tensorwire.torch.traffic import Budget, Exact, ExchangeError, Float8, Grid, all_to_all, counters, register_backend
from tensorwire.torch.traffic.codecs.codec import Raw, same_bytes
from tests.support.ranks import Ranks
from tests.support.sharded_models import Refuses

if TYPE_CHECKING:
    from tensorwire.torch.traffic.codecs.codec import Codec

SIZE = 4
WIDTH = 64


CODECS: dict[str, Codec] = {
    "exact": Exact(),
    "raw": Raw(),
    "int8": Grid(8, 64),
    "fp8": Float8("e4m3", 64),
    "refuses": Refuses(),
}


def backend(name: str, minimum: int = 0) -> str:
    """Its name at torch, which keeps it for good."""
    full = f"test-{name}-{minimum}"
    if full not in dist.Backend.backend_list:
        register_backend(full, CODECS[name], minimum=minimum)
    return full


def new_group(name: str, minimum: int = 0) -> dist.ProcessGroup:
    return dist.new_group(backend=backend(name, minimum))


def mine(dtype: torch.dtype = torch.bfloat16, numel: int = 4096) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)


def everyones(dtype: torch.dtype = torch.bfloat16, numel: int = 4096) -> list[torch.Tensor]:
    return [torch.randn(numel, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(SIZE)]


def in_rank_order(dtype: torch.dtype) -> torch.Tensor:
    total = torch.zeros(4096, dtype=torch.promote_types(dtype, torch.float32))
    for each in everyones(dtype):
        total += each
    return total


def sums_and_gathers(codec: str, dtype: torch.dtype) -> dict[str, float]:
    """The largest errors against sums in rank order, by collective."""
    group, rank = new_group(codec), dist.get_rank()
    results: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    total, part = in_rank_order(dtype), slice(1024 * rank, 1024 * rank + 1024)
    for op, factor in ((dist.ReduceOp.SUM, 1.0), (dist.ReduceOp.AVG, 1 / SIZE)):
        summed = mine(dtype)
        dist.all_reduce(summed, op, group=group)
        scattered = torch.empty(1024, dtype=dtype)
        dist.reduce_scatter_single(scattered, mine(dtype), op, group=group)
        results[f"all_reduce {factor}"] = summed, (total * factor).to(dtype)
        results[f"reduce_scatter {factor}"] = scattered, (total * factor)[part].to(dtype)
    strided = mine(dtype).view(64, 64).t()
    dist.all_reduce(strided, group=group)
    results["strided"] = strided.t().reshape(-1), total.to(dtype)
    whole = torch.empty(SIZE * 4096, dtype=dtype)
    dist.all_gather_single(whole, mine(dtype), group=group)
    listed = [torch.empty(4096, dtype=dtype) for _ in range(SIZE)]
    dist.all_gather(listed, mine(dtype), group=group)
    results["all_gather_single"] = whole, torch.cat(everyones(dtype))
    results["all_gather"] = torch.cat(listed), torch.cat(everyones(dtype))
    coded = [(row.tensor, row.direction, row.calls) for row in counters(group)]
    shapes = [(4096,), (4096,), (64, 64), (4096,)]
    directions = ["all_reduce", "reduce_scatter", "all_reduce", "all_gather"]
    calls = [4, 2, 2, 2]  # an all_reduce has two messages
    assert coded == [(f"{shape} {dtype}", *rest) for shape, *rest in zip(shapes, directions, calls, strict=True)]
    dist.destroy_process_group(group)
    return {name: float((a.double() - b.double()).abs().max()) for name, (a, b) in results.items()}


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        torch.float32,
        *(pytest.param(t, marks=pytest.mark.slow) for t in (torch.float16, torch.float64)),
    ],
)
def test_exact_sums_are_those_in_rank_order(ranks: Ranks, dtype: torch.dtype) -> None:
    for codec in ("exact", "raw"):
        for errors in ranks.run(sums_and_gathers, codec, dtype):
            assert set(errors.values()) == {0.0}


@pytest.mark.parametrize(("codec", "step"), [("int8", 1 / 127), ("fp8", 1 / 16)])
def test_lossy_sums_and_gathers_are_near(ranks: Ranks, codec: str, step: float) -> None:
    for errors in ranks.run(sums_and_gathers, codec, torch.float32):
        assert min(errors.values()) > 0
        assert max(errors.values()) < 12 * step  # sums of four numbers up to 4, rounded twice


def others() -> list[bool]:
    """What goes to gloo: each of it has gloo's result, and none of it a counter."""
    group, rank = new_group("int8", 16384), dist.get_rank()
    large = mine(torch.float32, 1 << 14)
    most = large.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    found = [torch.equal(most, torch.stack(everyones(torch.float32, 1 << 14)).amax(0))]
    numbers = torch.arange(1 << 14)
    dist.all_reduce(numbers, group=group)
    found.append(torch.equal(numbers, 4 * torch.arange(1 << 14)))
    gathered = torch.empty(SIZE << 14, dtype=torch.int64)
    dist.all_gather_single(gathered, torch.arange(1 << 14) + rank, group=group)
    found.append(torch.equal(gathered.view(SIZE, -1)[:, 0], torch.arange(SIZE)))
    small = torch.full((10,), 1.1)
    dist.all_reduce(small, group=group)
    found.append(torch.equal(small, torch.full((10,), 4.4)))
    root = large.clone()
    dist.broadcast(root, 1, group=group)
    found.append(torch.equal(root, everyones(torch.float32, 1 << 14)[1]))
    dist.reduce(large, 0, dist.ReduceOp.MIN, group=group)
    pieces = [torch.full((1 << 13,), float(rank)) for _ in range(SIZE)]
    part = torch.empty(1 << 13)
    dist.reduce_scatter(part, pieces, group=group)
    found.append(bool((part == 6).all()))
    swapped = torch.empty(1 << 14)
    dist.all_to_all_single(swapped, torch.full((1 << 14,), float(rank)), group=group)
    found.append(torch.equal(swapped.view(SIZE, -1)[:, 0], torch.arange(4.0)))
    ring = torch.empty(1 << 14)
    sent = dist.isend(torch.full((1 << 14,), float(rank)), (rank + 1) % SIZE, group=group)
    dist.recv(ring, (rank - 1) % SIZE, group=group)
    sent.wait()
    found.append(bool((ring == (rank - 1) % SIZE).all()))
    objects: list[Any] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    found.append([each["rank"] for each in objects] == list(range(SIZE)))
    dist.barrier(group=group)
    found.append(len(counters(group)) == 0)
    dist.destroy_process_group(group)
    return found


def test_everything_else_is_gloos(ranks: Ranks) -> None:
    assert ranks.run(others) == [[True] * 10] * SIZE


def unwaited() -> bool:
    """Broadcasts of a rank to itself that nobody keeps: a thread of gloo frees each, for which it needs the GIL."""
    alone = dist.new_group([dist.get_rank()], backend=backend("raw"), use_local_synchronization=True)
    tensor, interval = torch.ones(8), sys.getswitchinterval()
    sys.setswitchinterval(60)  # a call of torch that keeps the GIL is not asked for it
    try:
        for _ in range(6):
            for _ in range(500):
                dist.broadcast(tensor, dist.get_rank(), group=alone, async_op=True)
            dist.broadcast(tensor, dist.get_rank(), group=alone)
    finally:
        sys.setswitchinterval(interval)
    dist.destroy_process_group(alone)
    return True


def test_a_thread_of_gloo_gets_the_gil(ranks: Ranks) -> None:
    assert all(ranks.run(unwaited, seconds=30))


def overridden() -> set[str]:
    group = new_group("raw")
    names = set(vars(type(group)))
    dist.destroy_process_group(group)
    return names


def test_all_operations_that_torch_lets_a_subclass_override_are_overridden(ranks: Ranks) -> None:
    """Torch's own form of one would keep the GIL. Their names are in a header that comes with torch."""
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/PyProcessGroup.hpp"
    names = set(re.findall(r"intrusive_ptr<Work> (\w+)\(", header.read_text()))
    assert {"allreduce", "broadcast", "send"} <= names
    for found in ranks.run(overridden):
        assert names <= found


def asynchronous() -> bool:
    group = new_group("exact")
    tensors = [mine(torch.bfloat16, numel) for numel in (100, 4096, 5000)]
    works = [dist.all_reduce(each, group=group, async_op=True) for each in tensors]
    for work in works:
        work.wait()
    right = all(
        torch.equal(each, sum(one.float() for one in everyones(torch.bfloat16, each.numel())).to(each.dtype))
        for each in tensors
    )
    future = dist.all_reduce(tensors[0], group=group, async_op=True).get_future()
    right = right and same_bytes(future.wait()[0], tensors[0])
    dist.destroy_process_group(group)
    return right


def test_asynchronous_calls_keep_their_order(ranks: Ranks) -> None:
    assert all(ranks.run(asynchronous))


def ends() -> list[Any]:
    def threads() -> int:
        return sum("tensorwire-traffic" in each.name for each in threading.enumerate())

    def groups() -> int:
        return len(dist.distributed_c10d._world.pg_map)

    before = threads(), groups()
    for _ in range(3):
        group = new_group("exact")
        dist.all_reduce(mine(), group=group)
        during = threads(), groups()
        dist.destroy_process_group(group)
    return [during[0] - before[0], during[1] - before[1], threads() - before[0], groups() - before[1]]


def test_thread_and_group_end_with_the_group(ranks: Ranks) -> None:
    assert ranks.run(ends) == [[1, 2, 0, 0]] * SIZE


def refused() -> str:
    group = new_group("refuses")
    with pytest.raises(ExchangeError) as raised:
        dist.all_reduce(mine(), group=group)
    dist.destroy_process_group(group)
    return str(raised.value)


def test_a_rank_that_cannot_encode_is_an_error_on_all(ranks: Ranks) -> None:
    for error in ranks.run(refused):
        assert "rank 2" in error
        assert "OSError: no ink" in error


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, WIDTH))


def parallel(name: str, sequence: bool, compiled: bool) -> tuple[list[bytes], dict[str, int], list[float]]:
    """Bytes of output and gradients, calls by direction, and errors against the model on one rank."""
    # torch has plans of collectives for equal meshes, and keeps them when the groups of a mesh have gone.
    tp = f"{name} {sequence} {compiled}"
    mesh = init_device_mesh("cpu", (SIZE,), mesh_dim_names=(tp,), backend_override={tp: backend(name)})
    plan = {"1": ColwiseParallel(), "3": RowwiseParallel()}
    if sequence:
        plan = {
            "0": SequenceParallel(),
            "1": ColwiseParallel(input_layouts=Shard(1)),
            "3": RowwiseParallel(output_layouts=Shard(1)),
        }
    alone, split = model(), parallelize_module(model(), mesh, plan)
    rows = torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)
    expected = alone(rows)
    expected.square().sum().backward()
    expected_gradient, rows.grad = rows.grad, None
    if sequence:  # a rank has 4 of 16 positions
        own = slice(4 * mesh.get_rank(), 4 * mesh.get_rank() + 4)
        rows = rows.detach()[:, own].clone().requires_grad_()
        expected, expected_gradient = expected[:, own], expected_gradient[:, own]
    out = (torch.compile(split, backend="eager") if compiled else split)(rows)
    out.square().sum().backward()
    gradients = [rows.grad, *(split[i].weight.grad.to_local() for i in (1, 3))]
    errors = [float((out - expected).abs().max()), float((rows.grad - expected_gradient).abs().max())]
    group = mesh.get_group(tp)
    calls: dict[str, int] = {}
    for row in counters(group):
        calls[row.direction] = calls.get(row.direction, 0) + row.calls
    dist.destroy_process_group(group)
    found = [each.detach().contiguous().numpy().tobytes() for each in (out, *gradients)]
    return found, calls, errors


SEQUENCE = pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
# Calls of ours: of the sum of all ranks, its two messages count.
FORWARD_AND_BACKWARD = {False: {"all_reduce": 4}, True: {"all_gather": 2, "reduce_scatter": 2}}


@SEQUENCE
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tensor_parallelism_with_exact_has_the_bits_of_raw_messages(
    ranks: Ranks, sequence: bool, compiled: bool
) -> None:
    exact = ranks.run(parallel, "exact", sequence, compiled)
    raw = ranks.run(parallel, "raw", sequence, compiled)
    for (found, calls, errors), (expected, raw_calls, _) in zip(exact, raw, strict=True):
        assert found == expected
        assert calls == raw_calls == FORWARD_AND_BACKWARD[sequence]
        assert max(errors) < 1e-4


@SEQUENCE
def test_tensor_parallelism_with_lossy_codecs_is_coded_in_both_directions(ranks: Ranks, sequence: bool) -> None:
    for _, calls, (output, gradient) in ranks.run(parallel, "int8", sequence, False):
        assert calls == FORWARD_AND_BACKWARD[sequence]
        assert 0 < output < 0.05
        assert 0 < gradient < 0.5


def as_default_group(folder: str) -> list[Any]:
    """Everything of torch.distributed ends and begins anew, twice."""
    rank, found = dist.get_rank(), []
    for turn, name in enumerate([backend("exact"), "gloo"]):
        dist.destroy_process_group()
        way = f"file://{folder}/{turn}"
        dist.init_process_group(name, init_method=way, rank=rank, world_size=SIZE, timeout=timedelta(seconds=60))
        total = mine()
        dist.all_reduce(total)
        found.append(torch.equal(total, in_rank_order(torch.bfloat16).bfloat16()))
        got, _ = all_to_all(torch.full((SIZE, 2), float(rank)), [1] * SIZE)
        found.append(got[:, 0].tolist() == [0, 1, 2, 3])
        inside = dist.new_group([0, 1] if rank < 2 else [2, 3], use_local_synchronization=True)
        ones = torch.ones(4096)
        dist.all_reduce(ones, group=inside)
        found.append(bool((ones == 2).all()))
    return found


@pytest.mark.xdist_group("ranks")
def test_the_default_group_may_be_one(tmp_path: Path) -> None:
    """gloo sums BF16 in another order, with other bits. These ranks end on another default group than they had."""
    with Ranks(SIZE) as own:
        assert own.run(as_default_group, str(tmp_path)) == [[True, True, True, False, True, True]] * SIZE


def test_bad_arguments() -> None:
    for codec in ("fast", None, 4):
        with pytest.raises(TypeError, match="codec for a backend, a function"):
            register_backend("test-bad", codec)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 0 bytes"):
        register_backend("test-bad", Exact(), minimum=-1)
    with pytest.raises(TypeError, match=r"expected minimum to be an integer, got 1\.5"):
        register_backend("test-bad", Exact(), minimum=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected the name of a backend, got 5"):
        register_backend(5, Exact())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="which chooses for attach_ddp alone"):
        register_backend("test-bad", Budget())
    for name in ("gloo", "GLOO", backend("exact")):
        with pytest.raises(ValueError, match="no backend yet"):
            register_backend(name, Exact())
