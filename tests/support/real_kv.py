"""Keys and values of a real model as LMCache lays them out."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from benchmarks.engines.captured import CONTEXT, KINDS, minilm

if TYPE_CHECKING:
    from torch import Tensor


@cache
def chunks(count: int, tokens: int) -> tuple[Tensor, ...]:
    """So many chunks of so many tokens: keys and values, layers, tokens, channels; in BF16."""
    found = minilm(-(-count * tokens // CONTEXT) * CONTEXT)
    layers = sorted({layer for layer, _ in found})
    of_kinds = [torch.stack([torch.from_numpy(found[layer, kind]) for layer in layers]) for kind in KINDS]
    both = torch.stack(of_kinds).view(torch.bfloat16)
    return tuple(both[:, :, start : start + tokens].contiguous() for start in range(0, count * tokens, tokens))
