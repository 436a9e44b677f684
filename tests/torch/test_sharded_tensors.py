"""A DTensor is a part of a tensor on each rank: what wants a whole one names full_tensor()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import tensorwire
import tensorwire.safetensors.torch
from tensorwire.sync import Publisher
from tensorwire.torch import CompressedTensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.ranks import Ranks


def _error(call: Callable[[], object]) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    return str(caught.value)


def _errors(folder: Path) -> dict[str, str]:
    tensor = distribute_tensor(torch.ones(64, 64), init_device_mesh("cpu", (2,)), [Shard(0)])
    calls: dict[str, Any] = {
        "compress": lambda: tensorwire.compress(tensor),
        "a base": lambda: tensorwire.compress(torch.ones(64, 64), base=tensor),
        "save_file": lambda: tensorwire.save_file({"w": tensor}, folder / "a.safetensors"),
        "safetensors": lambda: tensorwire.safetensors.torch.save_file({"w": tensor}, folder / "a.safetensors"),
        "a compressed tensor": lambda: CompressedTensor.from_dense(tensor),
        "publish": lambda: Publisher(folder / "store").publish({"w": tensor}),
    }
    return {name: _error(call) for name, call in calls.items()}


def test_what_wants_a_whole_tensor_names_full_tensor(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(_errors, tmp_path):
        assert all("tensor.full_tensor()" in text for text in found.values()), found
    assert not list(tmp_path.glob("*.safetensors"))
