"""Keys and values of a real model: all-MiniLM-L6-v2 over docstrings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.data import minilm_path
from benchmarks.text import sentence_pairs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONTEXT = 256
TOKENS = 16384
KINDS = ("keys", "values")

Captured = dict[tuple[int, str], "NDArray[np.uint16]"]
"""By layer and kind the BF16 words of all tokens: (tokens, channels), contiguous."""


def minilm(tokens: int = TOKENS) -> Captured:
    """What the model in BF16 keeps of so many tokens, in contexts of 256."""
    from transformers import AutoModel, AutoTokenizer

    folder = minilm_path()
    model = AutoModel.from_pretrained(folder).to(torch.bfloat16).eval()
    found: dict[tuple[int, str], list[torch.Tensor]] = {}
    for layer, block in enumerate(model.encoder.layer):
        for kind, linear in zip(KINDS, (block.attention.self.key, block.attention.self.value), strict=True):
            kept = found.setdefault((layer, kind), [])
            linear.register_forward_hook(lambda module, given, out, kept=kept: kept.append(out))
    contexts = _ids(AutoTokenizer.from_pretrained(folder), tokens)
    with torch.no_grad():
        for batch in contexts.split(8):
            model(input_ids=batch, attention_mask=torch.ones_like(batch))
    return {key: _words(torch.cat(kept)) for key, kept in found.items()}


def _ids(tokenizer: Any, count: int) -> torch.Tensor:
    """Docstrings of Python's library in an order of their own, one behind the other, in rows."""
    ids: list[int] = []
    for first, rest in sentence_pairs(0):
        if len(ids) >= count:
            break
        ids += tokenizer(f"{first}. {rest}", add_special_tokens=False)["input_ids"]
    return torch.tensor(ids[:count]).view(-1, CONTEXT)


def _words(out: torch.Tensor) -> NDArray[np.uint16]:
    return out.reshape(-1, out.shape[-1]).view(torch.uint16).numpy().copy()
