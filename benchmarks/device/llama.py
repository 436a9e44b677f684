"""Llama of transformers with random weights, as wide as that of 8 billion weights, with a quarter of its layers."""

from __future__ import annotations

import functools
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from tensorwire.torch import CompressedTensor

if TYPE_CHECKING:
    from benchmarks.device.measure import Bench

PROFILES = ("fast", "resident")
_PROMPT = 64
_LENGTH = 128  # that the cache of keys and values has room for


@functools.cache
def llama(device: str, quick: bool, profile: Any = None) -> Any:
    """The model; with a profile its matrices are compressed. Kept, since several sections measure it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512} if quick else {
        "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256
    }  # fmt: skip
    config = LlamaConfig(
        **sizes, num_hidden_layers=1 if quick else 8, num_attention_heads=4 if quick else 32,
        num_key_value_heads=2 if quick else 8, dtype=torch.bfloat16,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(False)
    if profile is not None:
        _compress(model, profile)
    return model


def _compress(model: Any, profile: Any) -> None:
    places = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dim() == 2
    ]
    with ThreadPoolExecutor(8) as pool:
        every = pool.map(lambda place: CompressedTensor.from_dense(place[2], profile), places)
        for (module, name, _), held in zip(places, every, strict=True):
            module._parameters[name] = torch.nn.Parameter(held, requires_grad=False)


def resting_nbytes(model: Any) -> int:
    """What its parameters take."""
    return sum(each.frame.numel() if isinstance(each, CompressedTensor) else each.nbytes for each in model.parameters())


class DecodeStep:
    """The step that makes one token of each sequence, with a cache of keys and values of fixed size, which a graph can
    have captured. `reset` takes it back to where the prompt ends."""

    def __init__(self, bench: Bench, model: Any, sequences: int) -> None:
        from transformers import StaticCache

        self._model, self._cache = model, StaticCache(config=model.config, max_cache_len=_LENGTH)
        accepted = inspect.signature(type(model.model).forward).parameters
        self._has_position = "cache_position" in accepted  # transformers 5.17 or older
        self._name = "cache" if "cache" in accepted else "past_key_values"
        generator = torch.Generator(bench.device).manual_seed(0)
        sizes, device = (sequences, _PROMPT + 1), bench.device
        tokens = torch.randint(1, model.config.vocab_size, sizes, generator=generator, device=device)
        self._token, self._positions = tokens[:, _PROMPT:].contiguous(), torch.arange(_PROMPT + 1, device=device)
        self._run(tokens[:, :_PROMPT], self._positions[:_PROMPT])
        self._last = self._positions[_PROMPT:].clone()

    def __call__(self, _: int) -> torch.Tensor:
        return self._run(self._token, self._last)

    def reset(self) -> None:
        for layer in self._cache.layers:
            counted = getattr(layer, "cumulative_length", None)
            if isinstance(counted, torch.Tensor):
                counted.fill_(_PROMPT)

    @torch.no_grad()
    def _run(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        more = {"cache_position": positions} if self._has_position else {}
        found = self._model(
            input_ids=tokens, position_ids=positions[None], use_cache=True, logits_to_keep=1,
            **{self._name: self._cache}, **more,
        )  # fmt: skip
        logits: torch.Tensor = found.logits
        return logits
