"""What runs a model: a prompt, then one token after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from tensorwire.torch.products.linear import FUSED_ORDER, MAX_FUSED_INPUT_ROWS
from tensorwire.torch.products.ways import sums

if TYPE_CHECKING:
    from collections.abc import Sequence


class TorchDecoder:
    """A model of Transformers with its cache of keys and values.

    Attributes:
        model: it.
        keep: what must live as long as the model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.keep: Any = None
        self._cache: Any = None

    def start(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits behind the last token of each prompt; the cache begins anew."""
        from transformers import DynamicCache

        self._cache = None  # the old one is freed first
        self._cache = DynamicCache(config=self.model.config)
        return self._forward(torch.tensor(prompts))

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits behind one more token of each sequence."""
        return self._forward(torch.tensor(tokens)[:, None])

    @torch.no_grad()
    def products(self) -> int:
        """One product with each matrix of a linear layer, nothing else; return their bytes when dense."""
        nbytes = 0
        for module in self.model.modules():
            if isinstance(module, torch.nn.Linear | OwnLinear):
                rows, columns = module.weight.shape
                module(torch.ones(1, 1, columns, dtype=module.weight.dtype))
                nbytes += rows * columns * module.weight.dtype.itemsize
        return nbytes

    @torch.no_grad()
    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        # The cache goes by position, behind masks and positions: Transformers 5.24 gave the argument another name.
        output = self.model.model(ids, None, None, self._cache, use_cache=True)
        # A copy: with the strides of a slice torch 2.13 multiplies one row by the vocabulary many times as slowly, and
        # that would hide all else of the first token.
        last = output.last_hidden_state[:, -1:].clone(memory_format=torch.contiguous_format)
        logits: torch.Tensor = self.model.lm_head(last)[:, -1]
        return logits


class OwnLinear(torch.nn.Module):  # type: ignore[misc] # the checker does not see torch
    """A linear layer of a dense BF16 weight, multiplied in the order of summation of *fused*."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = self.weight.shape[1]
        if x.numel() > MAX_FUSED_INPUT_ROWS * columns:
            return linear(x, self.weight)
        return sums(x, self.weight, FUSED_ORDER, torch.get_num_threads()).to(x.dtype)
