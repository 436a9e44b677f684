"""Run a model under vLLM from a compressed checkpoint, with its weights compressed in memory.

Needs vLLM; ``make vllm`` makes an environment that has its CPU backend, and runs this file there. MODEL is the
directory of a causal language model; without one, a small Llama with random weights is made. The exit code is 1 if any
token differs from those of the original model.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import tensorwire

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
PROMPTS = [[1, 5, 9, 200, 17], [3], list(range(40, 80))]


def write_random_llama(path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.08)  # so that one token is clearly the most likely
    model.save_pretrained(path)


def generate(model: Path, **arguments: Any) -> list[list[int]]:
    from vllm import LLM, SamplingParams

    llm = LLM(str(model), skip_tokenizer_init=True, max_model_len=128, enforce_eager=True, **arguments)
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        model, compressed = Path(folder, "model"), Path(folder, "compressed")
        if len(sys.argv) > 1:
            model = Path(sys.argv[1])
        else:
            write_random_llama(model)
        report = tensorwire.compress_checkpoint(model, compressed)
        print(f"compressed: ratio {report.ratio:.3f}")
        dense = generate(model)
        # config.json names the quantization, so that the load format is all there is to say.
        ours = generate(compressed, load_format="tensorwire")
    for tokens in ours:
        print("tokens:", *tokens)
    print("equal tokens:", "yes" if ours == dense else "no")
    return 0 if ours == dense else 1


if __name__ == "__main__":  # vLLM's processes import this file
    sys.exit(main())
