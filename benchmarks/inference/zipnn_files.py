"""A checkpoint as files of ZipNN, one for each tensor: what its users decompress when they load a model."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.inference.model import Paths


def index(paths: Paths) -> Path:
    """The file that is written last."""
    return paths.compressed("zipnn") / "index.json"


def write(paths: Paths) -> None:
    """The tensors of the dense checkpoint, all of BF16."""
    from safetensors.torch import load_file

    codec, shapes = _codec(), {}
    index(paths).parent.mkdir(exist_ok=True)
    for path in sorted(paths.dense.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            words = bytearray(tensor.view(torch.uint8).numpy())  # it overwrites its input
            (index(paths).parent / name).write_bytes(codec.compress(words))
            shapes[name] = list(tensor.shape)
    index(paths).write_text(json.dumps(shapes))


def load(paths: Paths) -> dict[str, torch.Tensor]:
    """All tensors."""
    folder, codec = index(paths).parent, _codec()
    shapes: dict[str, list[int]] = json.loads(index(paths).read_text())
    return {name: _tensor(codec.decompress((folder / name).read_bytes()), shape) for name, shape in shapes.items()}


def _tensor(words: Any, shape: list[int]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of memory that may not be written to, which nobody does
        return torch.frombuffer(words, dtype=torch.bfloat16).view(shape)


def _codec() -> Any:
    from zipnn import ZipNN

    return ZipNN(bytearray_dtype="bfloat16", threads=torch.get_num_threads())
