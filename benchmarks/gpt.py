"""A small language model on the bytes of Python's standard library, and how it is trained."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.text import library_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

CONTEXT = 64
BYTES = 256
WARM_UP = 50
HEAD_WIDTH = 16


class Layer(nn.Module):
    """Attention and a gate-less MLP. Its heads are as many as its projections give, so ranks can share them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, state: Tensor) -> Tensor:
        normed = self.first(state)
        heads = [
            each(normed).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for each in (self.query, self.key, self.value)
        ]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        state = state + self.output(mixed.transpose(1, 2).flatten(2))
        return state + self.down(functional.gelu(self.up(self.second(state))))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.places = nn.Embedding(BYTES, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, BYTES, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of each next byte, in nats."""
        state = self.words(tokens[:, :-1]) + self.places(torch.arange(CONTEXT))
        for layer in self.layers:
            state = layer(state)
        logits = self.head(self.norm(state)).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def optimizer_of(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Each step sets the rate."""
    return torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.1)


def rate_at(step: int, peak: float, tail: tuple[int, int] | None = None) -> float:
    """The learning rate of step 1, 2, ...: a warm-up, then flat; in the tail half a cosine down to a tenth."""
    if tail and step > tail[0]:
        part = min(1.0, (step - tail[0]) / (tail[1] - tail[0]))
        return peak * (0.1 + 0.9 * (1 + math.cos(math.pi * part)) / 2)
    return peak * min(1.0, step / WARM_UP)


def batch(step: int, rows: int, seed: int = 0, rank: int = 0) -> Tensor:
    """Rows of CONTEXT + 1 bytes, others for each step, seed and rank."""
    generator = np.random.default_rng((seed, step, rank))
    return _rows(_text(validation=False), generator.integers(0, len(_text(validation=False)) - CONTEXT - 1, rows))


def validation_batch(rows: int = 1024) -> Tensor:
    """The same rows in each call, and many of them, so that models can be compared."""
    text = _text(validation=True)
    return _rows(text, np.random.default_rng(0).integers(0, len(text) - CONTEXT - 1, rows))


def _rows(text: np.ndarray, starts: np.ndarray) -> Tensor:
    return torch.from_numpy(np.stack([text[start : start + CONTEXT + 1] for start in starts]).astype(np.int64))


@cache
def _text(*, validation: bool) -> np.ndarray:
    return np.frombuffer(library_bytes(validation=validation), np.uint8)
