"""A connector for vLLM that keeps keys and values on disk as frames; and a program that shows that no bit changes.

The module is found by its name, and vLLM is not changed:

    KVTransferConfig(
        kv_connector="CompressedConnector",
        kv_connector_module_path="vllm_kv_connector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"shared_storage_path": "store"},
    )

vLLM's ExampleConnector does the scheduling. It is one for trying things out: it stores whole prompts while it computes,
never removes any, and knows a prompt by its tokens alone, so a store is for one model and for users who may see what
others ask. docs/vllm.md has the tier that is meant for use.

As a program it needs vLLM; ``make vllm`` makes an environment that has its CPU backend, and runs this file there. MODEL
is the directory of a causal language model; without one, a small Llama with random weights is made. The exit code is 1
if a token or a likelihood differs from those without the connector.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

import tensorwire

_log = logging.getLogger(__name__)


class CompressedConnector(ExampleConnector):  # type: ignore[misc] # the checker does not see vLLM
    """Each file has the keys and values of one layer for a prompt, as one frame.

    A frame that is damaged, gone or another model's fails the load of its prompt. With
    ``kv_load_failure_policy="recompute"`` vLLM then computes these tokens. What cannot be written is a miss.
    """

    _failed: frozenset[int] = frozenset()

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        for request in self._get_connector_metadata().requests:
            if request.is_store:
                blocks, places = self._where(request, kv_layer.device)
                content = kv_layer[blocks, :, places].cpu()
                try:
                    write(self._file(layer_name, request), tensorwire.compress(content))
                except OSError as error:
                    _log.warning("the keys and values of %s are not stored: %s", layer_name, error)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        caches = {name: getattr(each, "kv_cache", None) for name, each in forward_context.no_compile_layers.items()}
        for request in self._get_connector_metadata().requests:
            if request.is_store or forward_context.attn_metadata is None:
                continue
            for layer_name, cache in caches.items():
                if cache is None:  # no attention
                    continue
                blocks, places = self._where(request, cache.device)
                slots = cache[blocks, :, places]
                try:
                    content = tensorwire.decompress(self._file(layer_name, request).read_bytes(), framework="pt")
                    if (content.dtype, content.shape) != (slots.dtype, slots.shape):
                        raise ValueError(f"expected {slots.dtype} and {slots.shape}, got {content.dtype}")
                except (OSError, ValueError, TypeError) as error:  # errors of tensorwire are among them
                    _log.warning("the keys and values of %s are computed again: %s", layer_name, error)
                    self._failed |= set(blocks.tolist())
                    break
                cache[blocks, :, places] = content.to(cache.device)

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = set(self._failed), frozenset()
        return failed

    def _where(self, request: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The blocks of the cache that tokens are in, and their places in these."""
        slots = request.slot_mapping.to(device)
        return slots // self._block_size, slots % self._block_size

    def _file(self, layer_name: str, request: Any) -> Path:
        named = self._generate_filename_debug(layer_name, request.token_ids, request.mm_hashes)
        return Path(named).with_suffix(".tensorwire")


def write(path: Path, frame: bytes | memoryview) -> None:
    """All of it or nothing, also where two processes write it at once."""
    descriptor, new = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(frame)
        Path(new).replace(path)
    except BaseException:
        Path(new).unlink()
        raise


PROMPTS = [list(range(40, 240)), [(37 * index) % 500 for index in range(180)]]


def write_random_llama(path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)


def generate(model: Path, **arguments: Any) -> tuple[list[Any], int]:
    """Tokens with the likelihoods of some at each step, and how many tokens of prompts were loaded."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(str(model), skip_tokenizer_init=True, max_model_len=256, enforce_eager=True, seed=0, **arguments)
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False, logprobs=3)
    # One by one: what else is in a batch may change bits.
    outputs = [llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)[0] for prompt in PROMPTS]
    found = [
        [list(each.token_ids), [{token: of.logprob for token, of in step.items()} for step in each.logprobs]]
        for (each,) in (output.outputs for output in outputs)
    ]
    del llm
    cleanup_dist_env_and_memory()
    return found, sum(each.num_cached_tokens for each in outputs)


def main() -> int:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    from vllm.config import KVTransferConfig

    with tempfile.TemporaryDirectory() as folder:
        model, store = Path(folder, "model"), Path(folder, "store")
        if len(sys.argv) > 1:
            model = Path(sys.argv[1])
        else:
            write_random_llama(model)
        connected = {
            "enable_prefix_caching": False,
            "kv_transfer_config": KVTransferConfig(
                kv_connector=CompressedConnector.__name__,
                kv_connector_module_path=Path(__file__).stem,
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
                kv_connector_extra_config={"shared_storage_path": str(store)},
            ),
        }
        expected, _ = generate(model)
        same = {"stored": generate(model, **connected)[0] == expected}
        files = sorted(store.rglob("*.tensorwire"))
        infos = [tensorwire.frame_info(file.read_bytes()) for file in files]
        dense = sum(info.uncompressed_nbytes for info in infos)
        print(f"{len(files)} files, ratio {dense / sum(info.frame_nbytes for info in infos):.3f}")
        loaded, count = generate(model, **connected)
        print(f"{count} of {sum(map(len, PROMPTS))} tokens loaded")
        same["loaded"] = loaded == expected
        damaged = bytearray(files[0].read_bytes())
        damaged[len(damaged) // 2] ^= 1
        files[0].write_bytes(damaged)
        same["with a damaged file"] = generate(model, **connected)[0] == expected
    for what, is_same in same.items():
        print(f"equal tokens and likelihoods, {what}:", "yes" if is_same else "no")
    return 0 if all(same.values()) and count else 1


if __name__ == "__main__":  # vLLM's processes import this file
    sys.exit(main())
