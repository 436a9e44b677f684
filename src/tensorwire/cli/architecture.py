"""What config.json says of a language model: how much its key-value cache takes, and how many weights it has.

Pure arithmetic on the object in the file, for ``tensorwire fit``. Where the file does not say enough, or says something
that is not known here, a ValueError names it: a wrong size is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any, NamedTuple

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_MOST, _MOST_LAYERS = 1 << 40, 1 << 16
"""What no model has: where a file says more, the sums of it are numbers that nothing can hold or print."""
_LIMIT = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")

# One layer of so many is full, the others slide: what these models do where config.json leaves it to the program.
_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}
# States that do not grow with the context, and caches beside keys and values: their sizes are not known here.
_OTHER_STATES = (
    "ssm_cfg", "state_size", "mamba_d_state", "mamba_expand", "mamba_num_heads", "ssm_state_size", "lru_width",
    "linear_num_key_heads", "linear_attn_config", "index_head_dim", "global_head_dim", "num_global_key_value_heads",
)  # fmt: skip
# Decoders whose weights are the matrices that `num_weights` counts.
_COUNTED = {
    "llama", "mistral", "qwen2", "qwen3", "granite", "gemma", "gemma2", "gemma3_text", "olmo2", "smollm3",
    "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3",
}  # fmt: skip


@dataclass(frozen=True)
class Layers:
    """Layers with equal caches.

    Attributes:
        count: how many.
        numel: values that each of them keeps for a token.
        window: the most tokens that it keeps; None for all.
    """

    count: int
    numel: int
    window: int | None = None


class Cache(NamedTuple):
    """The key-value cache of a model.

    Attributes:
        layers: those with the same window and size together.
        latent: whether it keeps what keys and values are made of (MLA) in place of them.
        limit: the longest context that the model is made for, None if that is not said.
    """

    layers: tuple[Layers, ...]
    latent: bool
    limit: int | None

    @property
    def numel_per_token(self) -> int:
        """Values that a token adds while no window is full."""
        return sum(layers.count * layers.numel for layers in self.layers)

    def nbytes(self, context: int, batch: int, value_nbytes: int) -> int:
        """What it takes with `batch` sequences of `context` tokens each."""
        kept = (
            layers.count * layers.numel * min(context, context if layers.window is None else layers.window)
            for layers in self.layers
        )
        return sum(kept) * batch * value_nbytes

    def longest(self, room: int, batch: int, value_nbytes: int) -> int | None:
        """The longest context whose cache fits into `room` bytes; None if every context does: all windows are full."""
        widest = max((layers.window or 0 for layers in self.layers), default=0)
        if all(layers.window is not None for layers in self.layers):
            if self.nbytes(widest, batch, value_nbytes) <= room:
                return None
            high = widest
        else:
            high = max(room, 0) + 1  # more than fits: a token takes a byte at least
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            if self.nbytes(middle, batch, value_nbytes) <= room:
                low = middle
            else:
                high = middle
        return low


def text_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the language model: of one that also sees or hears an object of its own.

    What the whole says of the dtype holds for the part.
    """
    part = config.get("text_config")
    if not isinstance(part, dict):
        return config
    outer = {name: config[name] for name in ("dtype", "torch_dtype") if name in config}
    return {**outer, **part}


def cache_of(config: Mapping[str, Any]) -> Cache:
    """The key-value cache of the model that config.json describes.

    Raises:
        ValueError: the file does not say it, or says something that is not known here.
    """
    _check_decoder(config)
    config = text_model(config)
    for name in _OTHER_STATES:
        if config.get(name) is not None:
            raise ValueError(f"config.json has {name}: what that adds to the key-value cache is not known here")
    num_layers = _number(config, *_LAYERS, most=_MOST_LAYERS)
    latent = config.get("kv_lora_rank") is not None
    if latent:
        numel = _number(config, "kv_lora_rank") + _number(config, "qk_rope_head_dim")
    else:
        numel = 2 * _key_value_heads(config) * _head_size(config)
    windows = _windows(config, num_layers)
    without = _optional(config, "num_kv_shared_layers", least=0) or 0  # the last layers read the caches of others
    windows = windows[: max(num_layers - without, 0)]
    kinds = sorted(set(windows), key=lambda window: window or 0)
    layers = tuple(Layers(windows.count(window), numel, window) for window in kinds)
    return Cache(layers, latent, _optional(config, *_LIMIT))


def num_weights(config: Mapping[str, Any]) -> tuple[int, int]:
    """How many elements all weights have, and the largest matrix; biases and a few norms are not counted.

    Raises:
        ValueError: the matrices of such a model are not known here, or the file does not say their sizes.
    """
    _check_decoder(config)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _COUNTED:
        raise ValueError(f"config.json is of a model_type {shown(kind)}, whose weights are not known here")
    hidden, num_layers = _number(config, *_HIDDEN), _number(config, *_LAYERS, most=_MOST_LAYERS)
    embedding = _number(config, "vocab_size") * hidden
    feed_forward, largest = _feed_forward(config, hidden, num_layers)
    norms = (2 * num_layers + 1) * hidden
    total = num_layers * _attention(config, hidden) + feed_forward + norms
    tied = config.get("tie_word_embeddings", str(kind).startswith("gemma"))
    return total + embedding * (1 if tied else 2), max(embedding, largest)


def _attention(config: Mapping[str, Any], hidden: int) -> int:
    """Elements of the projections of one layer."""
    heads = _number(config, *_HEADS)
    if config.get("kv_lora_rank") is None:
        size = _head_size(config)
        return 2 * hidden * size * (heads + _key_value_heads(config))
    rank, rope = _number(config, "kv_lora_rank"), _number(config, "qk_rope_head_dim")
    nope, values = _number(config, "qk_nope_head_dim"), _number(config, "v_head_dim")
    queries = heads * (nope + rope)
    between = _optional(config, "q_lora_rank")
    into_queries = hidden * queries if between is None else between * (hidden + queries)
    keys_values = hidden * (rank + rope) + rank * heads * (nope + values)
    return into_queries + keys_values + heads * values * hidden


def _feed_forward(config: Mapping[str, Any], hidden: int, num_layers: int) -> tuple[int, int]:
    """Elements of all layers behind the attention, and of the largest matrix among them.

    The experts of a layer are matrices of their own, as they are in the files of all models that are counted.
    """
    num_experts = _optional(config, "num_local_experts", "num_experts", "n_routed_experts")
    dense = 3 * hidden * _number(config, "intermediate_size")
    if num_experts is None:
        return num_layers * dense, dense // 3
    expert = 3 * hidden * (_optional(config, "moe_intermediate_size") or _number(config, "intermediate_size"))
    shared = 3 * hidden * (_optional(config, "shared_expert_intermediate_size", least=0) or 0)
    shared += hidden if shared else 0  # its gate
    shared += expert * (_optional(config, "n_shared_experts", least=0) or 0)
    steps = [config.get(name, 1) for name in ("decoder_sparse_step", "moe_layer_freq")]
    if config.get("mlp_only_layers") or steps != [1, 1]:
        raise ValueError("config.json says which layers have experts in a way that is not known here")
    num_dense = min(_optional(config, "first_k_dense_replace", least=0) or 0, num_layers)
    sparse = num_experts * (expert + hidden) + shared
    return num_dense * dense + (num_layers - num_dense) * sparse, max(dense if num_dense else 0, expert) // 3


def continues_text(config: Mapping[str, Any]) -> bool:
    """Whether it is of a decoder alone, which continues text."""
    try:
        _check_decoder(config)
    except ValueError:
        return False
    return True


def _check_decoder(config: Mapping[str, Any]) -> None:
    if config.get("is_encoder_decoder"):
        raise ValueError("config.json is of an encoder with a decoder: what its caches take is not known here")
    names = config.get("architectures")
    names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    if names and not any(name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in names):
        raise ValueError(
            f"config.json is of a {names[0][:80]}, which does not continue text and has no key-value cache"
        )


def _windows(config: Mapping[str, Any], num_layers: int) -> list[int | None]:
    """For each layer how many tokens it keeps; None for all."""
    types = config.get("layer_types")
    if isinstance(types, list):
        if len(types) != num_layers:
            raise ValueError(f"config.json lists {len(types)} layer_types for {num_layers} layers")
        sizes = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
        unknown = [kind for kind in types if kind not in ("full_attention", *sizes)]
        if unknown:
            raise ValueError(f"config.json has layers of type {shown(unknown[0])}, whose cache is not known here")
        return [None if kind == "full_attention" else _number(config, sizes[kind]) for kind in types]
    window = _optional(config, "sliding_window")
    kind = str(config.get("model_type"))
    if window is None or not config.get("use_sliding_window", not kind.startswith("qwen")):
        return [None] * num_layers
    pattern = _optional(config, "sliding_window_pattern") or _PATTERNS.get(kind)
    if pattern is not None:
        return [None if (layer + 1) % pattern == 0 else window for layer in range(num_layers)]
    first = min(_optional(config, "max_window_layers", least=0) or 0, num_layers)
    return [None] * first + [window] * (num_layers - first)


def _key_value_heads(config: Mapping[str, Any]) -> int:
    found = _optional(config, "num_key_value_heads", "num_kv_heads")
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return _number(config, *_HEADS) if found is None else found


def _head_size(config: Mapping[str, Any]) -> int:
    size = _optional(config, "head_dim")
    return _number(config, *_HIDDEN) // _number(config, *_HEADS) if size is None else size


def _number(config: Mapping[str, Any], *names: str, most: int = _MOST) -> int:
    found = _optional(config, *names, most=most)
    if found is None:
        raise ValueError(f"config.json does not say {names[0]}")
    return found


def _optional(config: Mapping[str, Any], *names: str, least: int = 1, most: int = _MOST) -> int | None:
    """A number by the first of its names that config.json has."""
    for name in names:
        value = config.get(name)
        if value is not None:
            if isinstance(value, int) and value > most:
                raise ValueError(f"config.json says {name} {shown(value)}, expected a number of {most:,} or less")
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"config.json says {name} {shown(value)}, expected a number of {least} or more")
            return value
    return None
