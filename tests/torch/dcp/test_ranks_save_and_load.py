"""Distributed checkpoints of several ranks, loaded in another layout and on another number of ranks. The cases are
those of torch's own tests of its storage: test/distributed/checkpoint."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import fsdp
from torch.distributed._shard.sharded_tensor import init_from_local_shards
from torch.distributed._shard.sharded_tensor.shard import Shard as LocalShard
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tensorwire import inspect
from tensorwire.torch.dcp import TensorwireReader, TensorwireWriter
from tests.support.ranks import Ranks

needs_fsdp2 = pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no fully_shard")

PLACEMENTS = {
    "rows": [Shard(0)],
    "columns": [Shard(1)],
    "replicated": [Replicate()],
    "replicated rows": [Replicate(), Shard(0)],  # as HSDP has them
}


def whole() -> torch.Tensor:
    return torch.arange(37 * 26, dtype=torch.float32).reshape(37, 26) / 7


def _save(state: dict[str, Any], path: Path, **options: Any) -> None:
    warnings.simplefilter("ignore")
    dcp.save(state, storage_writer=TensorwireWriter(path, **options))


def _load(state: dict[str, Any], path: Path, **options: Any) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    dcp.load(state, storage_reader=TensorwireReader(path, **options))
    return state


def _distributed(placement: str, tensor: torch.Tensor) -> DTensor:
    placements = PLACEMENTS[placement]
    return distribute_tensor(tensor, _mesh(len(placements)), placements)


@functools.cache
def _mesh(dimensions: int) -> DeviceMesh:
    """One for all tensors: the groups of a mesh, and their threads, stay."""
    size = dist.get_world_size()
    return init_device_mesh("cpu", (size,) if dimensions == 1 else (2, size // 2))


def save_dtensor(path: Path, placement: str) -> None:
    _save({"w": _distributed(placement, whole())}, path)


def load_dtensor(path: Path, placement: str) -> bool:
    state = _load({"w": _distributed(placement, torch.zeros_like(whole()))}, path)
    return torch.equal(state["w"].full_tensor(), whole())


@pytest.mark.parametrize("before", PLACEMENTS)
def test_from_one_layout_to_another(ranks: Ranks, two: Ranks, tmp_path: Path, before: str) -> None:
    ranks.run(save_dtensor, tmp_path, before)
    assert ranks.run(load_dtensor, tmp_path, before) == [True] * 4
    for after in PLACEMENTS:
        assert two.run(load_dtensor, tmp_path, after) == [True] * 2


def _sharded_tensor(content: torch.Tensor) -> Any:
    """Each rank has two shards of rows, which do not lie beside each other."""
    warnings.simplefilter("ignore")
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = content.shape[0] // (2 * size)
    starts = [rank * rows, (rank + size) * rows]
    shards = [
        LocalShard.from_tensor_and_offsets(content[start : start + rows].clone(), [start, 0], rank) for start in starts
    ]
    return init_from_local_shards(shards, *content.shape)


def save_sharded_tensor(path: Path) -> None:
    _save({"w": _sharded_tensor(whole()[:32])}, path)


def load_sharded_tensor(path: Path) -> bool:
    state = _load({"w": _sharded_tensor(torch.zeros(32, 26))}, path)
    expected = _sharded_tensor(whole()[:32]).local_shards()
    found = state["w"].local_shards()
    return all(torch.equal(a.tensor, b.tensor) for a, b in zip(found, expected, strict=True))


def load_sharded_as_whole(path: Path) -> bool:
    return torch.equal(_load({"w": torch.zeros(32, 26)}, path)["w"], whole()[:32])


def test_several_shards_of_a_tensor_on_one_rank(ranks: Ranks, two: Ranks, tmp_path: Path) -> None:
    ranks.run(save_sharded_tensor, tmp_path)
    assert ranks.run(load_sharded_tensor, tmp_path) == [True] * 4
    assert two.run(load_sharded_tensor, tmp_path) == [True] * 2
    assert two.run(load_sharded_as_whole, tmp_path) == [True] * 2


def _training(steps: int, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(31, 64), nn.Tanh(), nn.Linear(64, 3)).bfloat16()
    for layer in (model[0], model[2]):
        fsdp.fully_shard(layer)
    fsdp.fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(7)
    for _ in range(steps):
        model(torch.randn(8, 31, generator=data).bfloat16()).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def _state(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": step, "seeds": {"rank": [1, 2]}}


def save_training(path: Path, how: str, base: Path | None) -> None:
    warnings.simplefilter("ignore")
    model, optimizer = _training(1 if base is None else 2)
    state, writer = _state(model, optimizer, 3), TensorwireWriter(path, base=base)
    if how == "at once":
        dcp.save(state, storage_writer=writer)
        return
    dcp.async_save(state, storage_writer=writer).result()


def load_training(path: Path, base: Path | None) -> bool:
    model, optimizer = _training(1, seed=1)
    state = _load(_state(model, optimizer, 0), path, base=base)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    expected = _state(*_training(1 if base is None else 2), 3)
    found = _state(model, optimizer, state["step"])
    return _flat(found) == _flat(expected)


def _flat(tree: Any) -> Any:
    """With tensors as bytes, whole on each rank."""
    if isinstance(tree, dict):
        return {key: _flat(each) for key, each in tree.items()}
    if isinstance(tree, DTensor):
        tree = tree.full_tensor()
    return (
        tree.contiguous().view(torch.uint8).numpy().tobytes() if isinstance(tree, torch.Tensor) and tree.dim() else tree
    )


@needs_fsdp2
def test_a_training_under_fsdp2(ranks: Ranks, two: Ranks, tmp_path: Path) -> None:
    ranks.run(save_training, tmp_path / "four", "at once", None)
    assert two.run(load_training, tmp_path / "four", None) == [True] * 2
    two.run(save_training, tmp_path / "two", "thread", None)
    assert ranks.run(load_training, tmp_path / "two", None) == [True] * 4


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(state_dict_saver, "AsyncCheckpointerType"), reason="this torch saves in no process of its own"
)
def test_saves_in_processes_of_their_own(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line += ["-m", "tests.support.async_saves", str(tmp_path / "c")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "same\n", done.stderr[-3000:]


@needs_fsdp2
def test_a_save_relative_to_the_one_before(ranks: Ranks, two: Ranks, tmp_path: Path) -> None:
    ranks.run(save_training, tmp_path / "first", "at once", None)
    ranks.run(save_training, tmp_path / "second", "at once", tmp_path / "first")
    assert two.run(load_training, tmp_path / "second", tmp_path / "first") == [True] * 2


class Failing(TensorwireWriter):
    """Raises, or dies, on rank 1 in one of its calls."""

    def __init__(self, path: Path, phase: str, *, dies: bool) -> None:
        super().__init__(path)
        self._phase, self._dies = phase, dies

    def _meet(self, phase: str) -> None:
        is_mine = dist.get_rank() == (0 if phase in ("prepare_global_plan", "finish") else 1)
        if phase == self._phase and is_mine:
            if self._dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError(f"in {phase}")

    def prepare_local_plan(self, plan: Any) -> Any:
        self._meet("prepare_local_plan")
        return super().prepare_local_plan(plan)

    def prepare_global_plan(self, plans: Any) -> Any:
        self._meet("prepare_global_plan")
        return super().prepare_global_plan(plans)

    def write_data(self, plan: Any, planner: Any) -> Any:
        done = super().write_data(plan, planner)
        self._meet("write_data")
        return done

    def finish(self, metadata: Any, results: Any) -> None:
        self._meet("finish")
        super().finish(metadata, results)


PHASES = ("prepare_local_plan", "prepare_global_plan", "write_data", "finish")


def save_failing(path: Path, phase: str, dies: bool = False) -> str:
    warnings.simplefilter("ignore")
    with pytest.raises(CheckpointException) as raised:
        dcp.save({"w": _distributed("rows", whole() + 1)}, storage_writer=Failing(path, phase, dies=dies))
    return str(next(iter(raised.value.failures.values()))[0])


@pytest.mark.parametrize("phase", PHASES)
def test_an_error_comes_to_all_ranks_and_the_last_checkpoint_stays(two: Ranks, tmp_path: Path, phase: str) -> None:
    two.run(save_dtensor, tmp_path, "rows")
    assert two.run(save_failing, tmp_path, phase) == [f"in {phase}"] * 2
    assert two.run(load_dtensor, tmp_path, "columns") == [True] * 2
    two.run(save_dtensor, tmp_path, "rows")
    names = [tensor.name for tensor in inspect(tmp_path).tensors]
    assert len({*names}) == len(names), "what the failed one has left counts for nothing"


@pytest.mark.parametrize(
    "phase", [pytest.param(each, marks=pytest.mark.slow if number % 2 else ()) for number, each in enumerate(PHASES)]
)
def test_a_rank_that_dies_leaves_the_last_checkpoint_whole(two: Ranks, tmp_path: Path, phase: str) -> None:
    two.run(save_dtensor, tmp_path, "rows")
    with Ranks(2) as dying:
        dying.begin(save_failing, tmp_path, phase, True)
        time.sleep(0.1)
        with pytest.raises(AssertionError):
            dying.results(20)
    assert two.run(load_dtensor, tmp_path, "replicated") == [True] * 2
    two.run(save_dtensor, tmp_path, "columns")
    assert two.run(load_dtensor, tmp_path, "rows") == [True] * 2
