"""A trainer publishes its weights, and a vLLM engine takes them while it is up.

Needs vLLM; ``make vllm`` makes an environment that has its CPU backend, and runs this file there. A small Llama with
random weights is trained for a few steps. The exit code is 1 if any token differs from those of an engine that was
started on the weights of the last step.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
STEPS = 3


def small_llama() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
    return LlamaForCausalLM(config).to(torch.bfloat16)


def started(model: Path, **arguments: Any) -> Any:
    from vllm import LLM

    return LLM(str(model), skip_tokenizer_init=True, max_model_len=128, enforce_eager=True, **arguments)


def generate(llm: Any) -> list[list[int]]:
    from vllm import SamplingParams

    llm.reset_prefix_cache()  # what it holds was computed with the weights before
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in ([1, 5, 9, 200, 17], [3])]
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling, use_tqdm=False)]


class Client:
    """What the trainer calls the engine by: here in one process, otherwise vLLM's client for HTTP or Ray."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self.llm.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        self.llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.llm.finish_weight_update(weight_version)


def main() -> int:
    import torch
    from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

    from tensorwire.torch.integrations.vllm_weights import TensorwireTrainerInitInfo

    with tempfile.TemporaryDirectory() as folder:
        first, last = Path(folder, "first"), Path(folder, "last")
        model = small_llama()
        model.save_pretrained(first)
        llm = started(first, weight_transfer_config={"backend": "tensorwire"})
        info = TensorwireTrainerInitInfo(store=str(Path(folder, "store")), rank=0)
        trainer = WeightTransferTrainerFactory.trainer_init(info, client=Client(llm), source=ModuleSource(model))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        tokens = torch.arange(120).reshape(4, 30) * 4
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            print(trainer.publish())  # the engine stages this while it serves
            trainer.update()
            ours = generate(llm)
        model.save_pretrained(last)
        del llm
        fresh = generate(started(last))
    print("equal tokens:", "yes" if ours == fresh else "no")
    return 0 if ours == fresh else 1


if __name__ == "__main__":  # vLLM's processes import this file
    sys.exit(main())
