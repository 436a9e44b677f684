"""A server of vLLM in a process of its own, and what it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.vllm_cases import NUM_TOKENS, PROMPTS

BLOCK = 32
"""How many tokens of a prompt vLLM keeps together for the next prompt that begins with them: the least on CPUs."""

assert max(map(len, PROMPTS)) > BLOCK


class Server:
    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """GET, or POST with a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def generate(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        """Tokens, and how likely each was."""
        sampling = {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "detokenize": False, "logprobs": 1}
        answer = self.call("/inference/v1/generate", {"token_ids": prompt, "sampling_params": sampling})
        (choice,) = answer["choices"]
        return choice["token_ids"], [step["logprob"] for step in choice["logprobs"]["content"]]

    def cached_tokens(self) -> float:
        """How many tokens of prompts it has found in its prefix cache so far."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:prefix_cache_hits_total{"))


def expected(outcome: dict[str, Any]) -> list[tuple[list[int], list[float]]]:
    """What a server answers to each prompt, by an engine that was started on the same weights."""
    return [
        (tokens, [step[str(token)] for token, step in zip(tokens, steps, strict=True)])
        for tokens, steps in zip(outcome["tokens"], outcome["logprobs"], strict=True)
    ]


@contextmanager
def serving(model: Path, root: Path, *more: str) -> Iterator[Server]:
    """Serve a model by our loader, with `more` options. `root` is where the server's output goes."""
    port = free_port()
    options = f"--model {model} --port {port} --max-model-len 128 --max-num-seqs 8 --block-size {BLOCK}"
    flags = "--load-format tensorwire --host 127.0.0.1 --enforce-eager --skip-tokenizer-init --enable-scale-out"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options.split(), *flags.split(), *more]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(root / "cache"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    log = root / "server.log"
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        try:
            server = Server(f"http://127.0.0.1:{port}")
            while not answers(server):
                assert process.poll() is None, log.read_text()[-4000:]
                time.sleep(0.2)
            yield server
        finally:
            process.terminate()


def answers(server: Server) -> bool:
    try:
        return bool(server.call("/weight_info"))
    except urllib.error.URLError:
        return False
