"""Answers batches of requests with vLLM's CPU backend, in one process: reads a task from standard input.

A program of its own, because vLLM needs an environment of its own, and variables before it is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the batch is what is asked for together
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def main() -> None:
    import resource

    from vllm import LLM, SamplingParams

    task = json.load(sys.stdin)
    requests, schedule = task["requests"], task["schedule"]
    ours = "quantization_config" in json.loads(Path(task["model"], "config.json").read_text())
    llm = LLM(
        task["model"],
        load_format="tensorwire" if ours else "auto",
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=128,
        max_num_seqs=max(map(len, schedule)),
    )
    tokens: list[list[int]] = [[] for _ in requests]
    start = time.perf_counter()
    for batch in schedule:
        prompts = [{"prompt_token_ids": requests[index]["prompt"]} for index in batch]
        how = [
            SamplingParams(temperature=0, max_tokens=requests[index]["max_tokens"], detokenize=False) for index in batch
        ]
        for index, answer in zip(batch, llm.generate(prompts, how, use_tqdm=False), strict=True):
            tokens[index] = list(answer.outputs[0].token_ids)
    seconds = time.perf_counter() - start
    found = {
        "tokens": tokens,
        "seconds": seconds,
        "peak_nbytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
