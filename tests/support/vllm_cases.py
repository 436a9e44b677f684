"""Runs vLLM on its CPU backend, case by case in one process: ``python vllm_cases.py CASES RESULTS``.

CASES is a JSON object: name -> arguments of ``vllm.LLM``. RESULTS gets one: name -> what came out. A program of its
own, because vLLM sets up process-wide state, and because the environment below has to be there before it is imported.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that the model can be looked into
    "VLLM_NO_USAGE_STATS": "1",
}

PROMPTS = [[1, 5, 9, 200, 17], [3], list(range(40, 80)), [7, 7, 7]]
NUM_TOKENS = 24
SETTINGS = {"skip_tokenizer_init": True, "max_model_len": 128, "max_num_seqs": 8, "enforce_eager": True, "seed": 0}


def describe(model: Any) -> dict[str, list[Any]]:
    """The parameters: dtype and number of bytes."""
    return {name: [str(p.dtype), p.numel() * p.element_size()] for name, p in model.named_parameters()}


def generate(llm: Any) -> dict[str, Any]:
    """Tokens, and the likelihood of a few at each step."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False, logprobs=4, prompt_logprobs=1
    )
    # One by one, as a server gets them: what else is in a batch may change bits.
    outputs = [llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)[0] for prompt in PROMPTS]
    sequences = [output.outputs[0] for output in outputs]
    return {
        "tokens": [list(sequence.token_ids) for sequence in sequences],
        "logprobs": [
            [{str(token): value.logprob for token, value in step.items()} for step in sequence.logprobs]
            for sequence in sequences
        ],
    }


def reload(llm: Any, path: str) -> str | None:
    """The error, if there was one."""
    try:
        llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def update(llm: Any, paths: list[str]) -> dict[str, Any]:
    """Reload the weights from one checkpoint after the other, and generate again."""
    errors = [reload(llm, path) for path in paths]
    llm.reset_prefix_cache()
    try:
        return {"errors": errors, **generate(llm)}
    except Exception as error:
        return {"errors": errors, "tokens": f"{type(error).__name__}: {error}"}


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """`updates`, one of the arguments, are the checkpoints that the weights are reloaded from."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = None
    try:
        updates = arguments.pop("updates", [])
        llm = LLM(**SETTINGS | arguments)
        return {
            **generate(llm),
            "parameters": llm.apply_model(describe)[0],
            "configuration": llm.llm_engine.vllm_config.compute_hash(),
            "updated": update(llm, updates) if updates else None,
        }
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def main(cases: str, results: str) -> None:
    outcomes = {name: run(arguments) for name, arguments in json.loads(Path(cases).read_text()).items()}
    Path(results).write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
