"""Chains of linear layers as torch modules, and files of their weights."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import tensorwire

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = 1024
NUM_LAYERS = 6


@cache
def _weights(width: int, num_layers: int, dtype: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(width)
    return [(torch.randn(width, width, generator=generator) * 0.03).to(dtype) for _ in range(num_layers)]


def chain(width: int = WIDTH, num_layers: int = NUM_LAYERS, dtype: Any = torch.bfloat16) -> nn.Sequential:
    """Layers of different weights, the same each time."""
    with torch.device("meta"):
        layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))
    for layer, weight in zip(layers, _weights(width, num_layers, dtype), strict=True):
        layer.weight = nn.Parameter(weight.clone(), requires_grad=False)
    return layers


def saved(model: nn.Module, path: Path, **options: Any) -> Path:
    tensorwire.save_file(model.state_dict(), path, **options)
    return path


def loaded(path: Path, num_layers: int = NUM_LAYERS, width: int = WIDTH, **options: Any) -> nn.Sequential:
    """The chain whose weights are in a file, compressed."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers))).to(torch.bfloat16)
    model.load_state_dict(tensorwire.load_file(path, framework="pt", compressed=True, **options), assign=True)
    return model


def inputs(count: int = 1, width: int = WIDTH) -> Any:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).bfloat16()


def same(a: Any, b: Any) -> bool:
    """Bit for bit."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))
    )
