"""The forward pass of all-MiniLM-L6-v2 in plain PyTorch, on the tensors of the checkpoint by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

LAYERS = 6
HEADS = 12
NORM_EPSILON = 1e-12
SIMILARITY_SCALE = 20.0


def contrastive_loss(weights: Mapping[str, Tensor], first: Tensor, second: Tensor) -> Tensor:
    """How badly row i of `first` finds row i of `second` among all rows, and the other way round.

    Args:
        weights: by name, as the checkpoint has them.
        first, second: token numbers, one sentence a row; 0 pads.
    """
    scores = SIMILARITY_SCALE * _embed(weights, first) @ _embed(weights, second).T
    right = torch.arange(len(first))
    return (functional.cross_entropy(scores, right) + functional.cross_entropy(scores.T, right)) / 2


def _embed(weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """A vector of length 1 for each row: the mean over its words."""
    words = tokens != 0
    state = functional.embedding(tokens, weights["embeddings.word_embeddings.weight"])
    state = state + weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    state = state + weights["embeddings.token_type_embeddings.weight"][0]
    state = _norm(weights, "embeddings.LayerNorm", state)
    for layer in range(LAYERS):
        state = _layer(weights, f"encoder.layer.{layer}", state, words[:, None, None, :])
    mask = words[..., None].float()
    return functional.normalize((state * mask).sum(1) / mask.sum(1), dim=-1)


def _layer(weights: Mapping[str, Tensor], name: str, state: Tensor, mask: Tensor) -> Tensor:
    heads = [
        _linear(weights, f"{name}.attention.self.{part}", state).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for part in ("query", "key", "value")
    ]
    mixed = functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2).flatten(2)
    output = _linear(weights, f"{name}.attention.output.dense", mixed)
    state = _norm(weights, f"{name}.attention.output.LayerNorm", state + output)
    inner = functional.gelu(_linear(weights, f"{name}.intermediate.dense", state))
    return _norm(weights, f"{name}.output.LayerNorm", state + _linear(weights, f"{name}.output.dense", inner))


def _linear(weights: Mapping[str, Tensor], name: str, state: Tensor) -> Tensor:
    return functional.linear(state, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(weights: Mapping[str, Tensor], name: str, state: Tensor) -> Tensor:
    return functional.layer_norm(
        state, state.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], NORM_EPSILON
    )
