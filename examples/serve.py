"""Serve a language model whose weights stay compressed. Requests that wait together are answered in one batch.

    python serve.py llama.tensorwire
    curl localhost:8000 -d '{"prompt": "Once upon a time", "max_tokens": 20}'

Needs torch and Transformers. A plain directory is served as it is, dense. A prompt is a text, or a list of token
numbers as the tokenizer gives them. A list of requests is answered in one batch. The tokens are those of the
dense model in the same batches: which requests share a batch decides in which order torch sums.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

import tensorwire.torch  # with it Transformers opens compressed directories


@dataclass(frozen=True)
class Request:
    """Tokens to continue, and at most how many are to come."""

    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Answer:
    """The tokens that came, the number of the batch that they came in, and which row of it."""

    tokens: list[int]
    batch: int
    row: int


def generate(model: Any, requests: list[Request]) -> list[list[int]]:
    """The likeliest tokens after each prompt. All requests of a batch take as long as the longest of them."""
    width = max(len(request.prompt) for request in requests)
    padding = [width - len(request.prompt) for request in requests]
    found = model.generate(
        input_ids=torch.tensor([[0] * left + r.prompt for left, r in zip(padding, requests, strict=True)]),
        attention_mask=torch.tensor([[0] * left + [1] * (width - left) for left in padding]),
        do_sample=False,
        max_new_tokens=max(request.max_tokens for request in requests),
        pad_token_id=0,
    )
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    answers = [row[width:][: r.max_tokens] for row, r in zip(found.tolist(), requests, strict=True)]
    return [row[: next((i + 1 for i, token in enumerate(row) if token in ends), len(row))] for row in answers]


def whole_inputs(head: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    """For the head, which `generate` gives the last position of each prompt, a slice: torch 2.13 would copy the weight
    for each sequence of the batch, a compressed one at the first batch of each size. For one sequence `contiguous`
    would keep the strides."""
    return (inputs[0].clone(memory_format=torch.contiguous_format),)


class Batcher:
    """Answers lists of requests in a thread of its own: as many as wait, and fit into a batch, at the same time."""

    def __init__(self, model: Any, limit: int) -> None:
        self._model, self._limit = model, limit
        self._waiting: queue.Queue[tuple[list[Request], Future[list[Answer]]]] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def ask(self, requests: list[Request]) -> list[Answer]:
        """Answers, once they are there. ValueError: so many requests never fit into a batch."""
        if not 0 < len(requests) <= self._limit:
            raise ValueError(f"expected 1 to {self._limit} requests, got {len(requests)}")
        answer: Future[list[Answer]] = Future()
        self._waiting.put((requests, answer))
        return answer.result()

    def _work(self) -> None:
        number, first = 0, self._waiting.get()
        while True:
            batch, size, following = [first], len(first[0]), None
            while following is None and not self._waiting.empty():
                item = self._waiting.get()
                size += len(item[0])
                if size > self._limit:
                    following = item
                else:
                    batch.append(item)
            self._answer(batch, number)
            number, first = number + 1, following or self._waiting.get()

    def _answer(self, batch: list[tuple[list[Request], Future[list[Answer]]]], number: int) -> None:
        try:
            tokens = generate(self._model, [request for requests, _ in batch for request in requests])
        except Exception as error:
            for _, answer in batch:
                answer.set_exception(error)
        else:
            found = iter([Answer(each, number, row) for row, each in enumerate(tokens)])
            for requests, answer in batch:
                answer.set_result([next(found) for _ in requests])


def handler(batcher: Batcher, tokenizer: Any, limit: int) -> type[BaseHTTPRequestHandler]:
    """Answers over HTTP; `limit` is how many tokens the model can read."""

    def parsed(given: Any) -> Request:
        prompt, max_tokens = given["prompt"], given.get("max_tokens", 100)
        if isinstance(prompt, str):
            if tokenizer is None:
                raise ValueError("the model has no tokenizer: send token numbers")
            prompt = tokenizer(prompt)["input_ids"]
        if type(max_tokens) is not int or not prompt or not 0 < max_tokens <= limit - len(prompt):
            raise ValueError(f"expected a prompt and max_tokens of at most {limit} tokens together")
        return Request(prompt, max_tokens)

    def shown(answer: Answer) -> dict[str, Any]:
        text = {} if tokenizer is None else {"text": tokenizer.decode(answer.tokens, skip_special_tokens=True)}
        return {**text, **vars(answer)}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                requests = [parsed(each) for each in (given if isinstance(given, list) else [given])]
                found: Any = [shown(answer) for answer in batcher.ask(requests)]
                status, found = 200, found if isinstance(given, list) else found[0]
            except (KeyError, TypeError, ValueError) as error:
                status, found = 400, {"error": f"{type(error).__name__}: {error}"}
            except Exception as error:
                status, found = 500, {"error": f"{type(error).__name__}: {error}"}
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    return Handler


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # connections that may come at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a directory that tensorwire compress has made, or a plain one")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="at most so many requests together (%(default)s)")
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(options.model, local_files_only=True).eval()
    model.get_output_embeddings().register_forward_pre_hook(whole_inputs)
    has_tokenizer = (options.model / "tokenizer.json").exists()
    tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True) if has_tokenizer else None
    limit = model.config.get_text_config().max_position_embeddings
    memory = tensorwire.torch.memory_report(model)
    answers = handler(Batcher(model, options.batch), tokenizer, limit)
    with Server(("127.0.0.1", options.port), answers) as server:
        place = f"http://127.0.0.1:{server.server_address[1]}"
        print(
            f"{place} serves {options.model}: weights {memory.nbytes:,} bytes, dense {memory.dense_nbytes:,}",
            flush=True,
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")


if __name__ == "__main__":
    main()
