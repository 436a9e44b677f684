"""The model under llama.cpp in BF16, by llama-cpp-python: a GGUF file without a vocabulary, and what runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.inference.model import Paths, Size

CONTEXT = 1024
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def file(paths: Paths) -> Path:
    """Where the GGUF file lies."""
    return paths.folder / "model.gguf"


def write(size: Size, paths: Paths) -> None:
    """The dense checkpoint as a GGUF file."""
    import gguf
    from safetensors.torch import load_file

    unfinished = file(paths).with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(size.hidden)
    writer.add_block_count(size.layers)
    writer.add_feed_forward_length(size.inner)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.kv_heads)
    writer.add_key_length(size.head_dim)
    writer.add_value_length(size.head_dim)
    writer.add_rope_dimension_count(size.head_dim)
    writer.add_layer_norm_rms_eps(size.config()["rms_norm_eps"])
    writer.add_vocab_size(size.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for path in sorted(paths.dense.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            if tensor.dim() == 1:
                writer.add_tensor(_name(name), tensor.to(torch.float32).numpy())
            else:
                words = _arranged(size, name, tensor).view(torch.uint8).numpy()
                writer.add_tensor(_name(name), words, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(file(paths))


class LlamaCppDecoder:
    """What runs it, with as many threads as torch has now."""

    def __init__(self, path: Path) -> None:
        from llama_cpp import Llama

        threads = torch.get_num_threads()
        self._llama = Llama(
            str(path), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, use_mmap=False, verbose=False
        )

    def start(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits behind the last token of the one prompt."""
        self._llama.reset()
        return self._logits(*prompts)

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits behind one more token."""
        return self._logits(tokens)

    def _logits(self, tokens: Sequence[int]) -> torch.Tensor:
        import numpy as np
        from llama_cpp import llama_get_logits_ith

        self._llama.eval(tokens)
        logits = llama_get_logits_ith(self._llama.ctx, -1)
        return torch.from_numpy(np.ctypeslib.as_array(logits, (1, self._llama.n_vocab())).copy())


def _name(name: str) -> str:
    module, _, leaf = name.rpartition(".")
    if not module.startswith("model.layers."):
        return f"{NAMES[module]}.{leaf}"
    _, _, index, rest = module.split(".", 3)
    return f"blk.{index}.{NAMES[rest]}.{leaf}"


def _arranged(size: Size, name: str, tensor: Any) -> Any:
    """llama.cpp turns pairs of neighbours, Transformers a number of the first half with one of the second."""
    heads = {"q_proj": size.heads, "k_proj": size.kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.view(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
