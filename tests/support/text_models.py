"""A small language model with random weights and a tokenizer."""

from __future__ import annotations

from string import ascii_letters
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

POSITIONS = 256


def save(path: Path, *, chat_template: str | None = None) -> None:
    """A directory as a hub has it."""
    torch.manual_seed(0)
    tokens = tokenizer()
    tokens.chat_template = chat_template
    config = transformers.LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        bos_token_id=tokens.bos_token_id,
        eos_token_id=tokens.eos_token_id,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.08)  # so that no token is followed by itself again and again
    model.save_pretrained(path)
    tokens.save_pretrained(path)


def tokenizer() -> Any:
    """A token for each letter, and one for the space, which the byte level writes as "Ġ"."""
    special = ["<s>", "</s>"]
    vocabulary = {token: index for index, token in enumerate([*special, *ascii_letters, "Ġ"])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=special[0], eos_token=special[1])


def greedy(path: Path, inputs: Any, count: int) -> list[int]:
    """The tokens of the dense model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    found = model.generate(**inputs, do_sample=False, max_new_tokens=count)
    tokens: list[int] = found[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens
