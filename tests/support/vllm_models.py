"""Small models for the tests of the vLLM plug-in, and vLLM with them in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
OURS = {"load_format": "tensorwire"}
SIZES = {
    "vocab_size": 500,  # vLLM pads it to 512
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def write_llama(path: Path, *, tied: bool = False, **sizes: int) -> None:
    """Random weights. Which token comes next is clear, so that it is never a matter of rounding: the one whose row of
    the head is that of the last token in the embedding.
    """
    config = transformers.LlamaConfig(**SIZES | sizes, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.03)
    embedding = torch.nn.init.normal_(model.get_input_embeddings().weight.data, std=0.3)
    if not tied:
        model.lm_head.weight.data = embedding[torch.randperm(len(embedding))] / 4
    model.save_pretrained(path, max_shard_size="500KB")


def write_mixtral(path: Path) -> None:
    """A mixture of experts, random."""
    config = transformers.MixtralConfig(**SIZES, num_local_experts=4, bos_token_id=1, eos_token_id=2)
    transformers.MixtralForCausalLM(config).to(torch.bfloat16).save_pretrained(path)


def train(path: Path, trained: Path, frozen: str = " ") -> None:
    """A step of AdamW, large enough to change what comes next. Parameters with `frozen` in their names stay."""
    model = transformers.LlamaForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(
        [parameter for name, parameter in model.named_parameters() if frozen not in name], lr=0.02
    )
    tokens = torch.arange(120).reshape(4, 30) * 4
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    model.save_pretrained(trained, max_shard_size="500KB")


def damage(path: Path, tensor: str) -> None:
    """Change a byte in the middle of the data of a tensor."""
    from tensorwire.files.names import payload_name

    index = json.loads((path / "model.safetensors.index.json").read_text())
    file = path / index["weight_map"][tensor]
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:8], "little")
    first, last = json.loads(data[8 : 8 + size])[payload_name(tensor)]["data_offsets"]
    data[8 + size + (first + last) // 2] ^= 1
    file.write_bytes(data)


def lose(path: Path, tensor: str) -> None:
    """Take a tensor out of a checkpoint of one file."""
    from safetensors.torch import load_file, save_file

    tensors = {}
    for file in path.glob("*.safetensors"):
        tensors |= load_file(file)
        file.unlink()
    (path / "model.safetensors.index.json").unlink()
    del tensors[tensor]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def run_cases(cases: dict[str, dict[str, Any]], root: Path, program: str = "vllm_cases", code: int = 0) -> Any:
    """What came out of each case, all in one process: vLLM takes seconds to import. `code` is how it has to end."""
    (root / "cases.json").write_text(json.dumps(cases))
    results = root / "results.json"
    results.write_text("null")
    command = [sys.executable, "-m", f"tests.support.{program}", str(root / "cases.json"), str(results)]
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(root / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == code, done.stderr[-4000:]
    return json.loads(results.read_text())
