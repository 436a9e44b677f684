"""Distributed checkpoints of one process."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from tensorwire.torch.dcp import TensorwireReader, TensorwireWriter

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.checkpoint.api import CheckpointException


WRITERS = {"ours": TensorwireWriter, "torchs": dcp.FileSystemWriter}
each_writer = pytest.mark.parametrize("writer", WRITERS)


def saved(folder: Path, writer: str, content: dict[str, Any], **options: Any) -> Path:
    dcp.save(content, storage_writer=WRITERS[writer](folder, **options))
    return folder


def from_safetensors(folder: Path) -> dict[str, torch.Tensor]:
    """As safetensors itself reads them."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict


def shard(folder: Path) -> Path:
    (found,) = (path for path in folder.iterdir() if path.name.startswith("__"))
    return found


def state(seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {
            "weight": (torch.randn(300, 400, generator=generator) * 0.02).bfloat16(),
            "transposed": torch.randn(50, 60, generator=generator).T,
            "empty": torch.empty(0, 7),
            "scalar": torch.tensor(3.5, dtype=torch.float64),
            "flags": torch.tensor([True, False]),
            "complex": torch.randn(5, dtype=torch.complex64, generator=generator),
            "eight": torch.randn(64, generator=generator).to(torch.float8_e4m3fn),
        },
        "step": seed,
        "scheduler": {"rates": [1e-3, 1e-4], "name": "cosine"},
    }


def blank(tree: Any) -> Any:
    """The same with nothing in it."""
    if isinstance(tree, dict):
        return {key: blank(each) for key, each in tree.items()}
    return torch.zeros_like(tree) if isinstance(tree, torch.Tensor) else type(tree)()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        one, other = (each.contiguous().reshape(-1).view(torch.uint8) for each in (a, b))
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(one, other)
    return bool(a == b)


def loaded(path: Any, like: dict[str, Any], **options: Any) -> dict[str, Any]:
    found = blank(like)
    dcp.load(found, storage_reader=TensorwireReader(path, **options))
    return found


def save(path: Any, content: dict[str, Any], **options: Any) -> None:
    dcp.save(content, storage_writer=TensorwireWriter(path, **options))


def part(
    path: Any, name: str, start: tuple[int, ...], lengths: tuple[int, ...], dtype: torch.dtype = torch.complex128
) -> torch.Tensor:
    """Some of a tensor, as a rank of another layout reads it."""
    found = torch.zeros(torch.Size(lengths).numel() * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(lengths)

    class Planner:
        def resolve_tensor(self, item: ReadItem) -> torch.Tensor:
            return found

        def commit_tensor(self, item: ReadItem, tensor: torch.Tensor) -> None:
            """Nothing."""

    reader = TensorwireReader(path)
    reader.set_up_storage_reader(reader.read_metadata(), True)
    index, size = MetadataIndex(name, [0] * len(start)), torch.Size(lengths)
    item = ReadItem(LoadItemType.TENSOR, MetadataIndex(name), torch.Size(start), index, torch.Size(start), size)
    reader.read_data(LoadPlan([item]), Planner()).wait()  # type: ignore[arg-type]
    return found


def failure(caught: pytest.ExceptionInfo[CheckpointException]) -> BaseException:
    """What kept the rank from doing its part."""
    found: BaseException = caught.value.failures[0][0]
    return found


def sealed(body: dict[str, Any]) -> bytes:
    """The metadata as it stands in its file, under a checksum that is right."""
    body = {key: value for key, value in body.items() if key != "sha256"}
    whole = json.dumps(body, separators=(",", ":")).encode()
    return json.dumps(body | {"sha256": hashlib.sha256(whole).hexdigest()}).encode()
