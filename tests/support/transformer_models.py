"""Small models of transformers with random weights, and what they compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers

from tensorwire.torch import CompressedTensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SIZES = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_LLAMA = {**_SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64}


def _bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**_SIZES))


def _llama(tied: bool) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LLAMA, tie_word_embeddings=tied))


def _moe() -> Any:
    """Experts are separate tensors on disk, one fused tensor in the model."""
    extra = {"moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 64}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**_LLAMA, **extra))


def _mamba() -> Any:
    """Parameters A_log and D: upper case sorts before the underscore of a payload's name."""
    config = transformers.MambaConfig(vocab_size=512, hidden_size=256, num_hidden_layers=2, state_size=16)
    return transformers.MambaForCausalLM(config)


def _gpt2() -> Any:
    """Its layers multiply with the transposed weight; the head is tied."""
    config = transformers.GPT2Config(
        vocab_size=512, n_positions=64, n_embd=256, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def _t5() -> Any:
    config = transformers.T5Config(
        vocab_size=512, d_model=256, d_kv=64, d_ff=512, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def _vit() -> Any:
    sizes = {key: size for key, size in _SIZES.items() if key != "vocab_size"}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, image_size=32, patch_size=8))


# name: (how it is loaded, how it is made)
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "bert": ("AutoModel", _bert),
    "llama": ("AutoModelForCausalLM", lambda: _llama(tied=False)),
    "llama-tied": ("AutoModelForCausalLM", lambda: _llama(tied=True)),
    "llama-headless": ("AutoModel", lambda: _llama(tied=False)),
    "moe": ("AutoModelForCausalLM", _moe),
    "mamba": ("AutoModelForCausalLM", _mamba),
    "gpt2": ("AutoModelForCausalLM", _gpt2),
    "t5": ("AutoModelForSeq2SeqLM", _t5),
    "vit": ("AutoModelForImageClassification", _vit),
}


def save(name: str, path: Path, *, max_shard_size: str = "1GB", dtype: torch.dtype = torch.bfloat16) -> None:
    """A directory `path` with model `name`. Biases and norms are random too, where they begin as zeros and ones."""
    torch.manual_seed(0)
    model = MODELS[name][1]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    model.to(dtype).save_pretrained(path, max_shard_size=max_shard_size)


def load(path: Path, name: str, **options: Any) -> Any:
    """The directory as model `name`."""
    return getattr(transformers, MODELS[name][0]).from_pretrained(path, **options)


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    """What has to be equal."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tensor.shape, data


def state(model: Any) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    """The bits of each tensor of a model."""
    return {
        name: bits(tensor.decode() if hasattr(tensor, "decode") else tensor)
        for name, tensor in model.state_dict().items()
    }


@torch.no_grad()
def outputs(model: Any, *, generates: bool = True) -> list[torch.Tensor]:
    """What a model computes: of a batch and of a single sequence, and the tokens that it generates if asked to."""
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        pixels = torch.randn((2, 3, 32, 32), generator=generator).to(model.dtype)
        return [model(pixel_values=pixels).logits]
    tokens = torch.randint(1, 512, (2, 12), generator=generator)
    extra = {"decoder_input_ids": tokens[:, :5]} if model.config.is_encoder_decoder else {}
    found = [
        model(input_ids=tokens, **extra)[0],
        model(input_ids=tokens[:1], **{k: v[:1] for k, v in extra.items()})[0],
    ]
    if generates and model.can_generate():
        found.append(model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0))
    return found


def num_compressed(model: Any) -> int:
    return sum(isinstance(parameter, CompressedTensor) for parameter in model.parameters())
