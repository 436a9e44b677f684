"""One contender in a process of its own, which does what it is told: python -m benchmarks.inference.contest NAME ...

Each line of the input is an order as JSON, `{"do": "tokens", "count": 4}`; each line of the output is the answer.
The orders are the methods of `Session`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.inference import memory
from benchmarks.inference.model import SIZES, Paths

PROMPT_SEED = 7


class Session:
    """Answers orders. Torch and what is built on it are imported, and warm, before a model is loaded."""

    def __init__(self, name: str, size: str, folder: Path, limit: int | None, threads: int) -> None:
        import torch

        import tensorwire.checkpoint
        import tensorwire.torch  # noqa: F401
        from benchmarks.inference.contenders import CONTENDERS, Task, warm_up

        self._torch = torch
        self._task = Task(SIZES[size], Paths(folder), limit)
        self._contender = CONTENDERS[name]
        self._decoder: Any = None
        self._next: list[int] = []
        self._digests: list[str] = []
        self._answer: list[int] = []
        self.threads(threads)
        warm_up()
        self._imported = memory.resident_nbytes()

    def threads(self, count: int) -> dict[str, Any]:
        """From now on torch has so many."""
        self._torch.set_num_threads(count)
        return {}

    def load(self) -> dict[str, Any]:
        """The model, from its files."""
        start = time.perf_counter()
        self._decoder = self._contender.load(self._task)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "imported": self._imported}

    def prompt(self, length: int, batch: int = 1) -> dict[str, Any]:
        """Begin anew with random tokens; the time is that to the first token of the answer."""
        generator = self._torch.Generator().manual_seed(PROMPT_SEED)
        prompts = self._torch.randint(self._task.size.vocabulary, (batch, length), generator=generator).tolist()
        self._digests, self._answer = [], []
        read = memory.read_nbytes()
        seconds = self._timed(lambda: self._decoder.start(prompts))
        return {"seconds": seconds, "read": memory.read_nbytes() - read}

    def tokens(self, count: int, budget: float = float("inf")) -> dict[str, Any]:
        """So many more, each the likeliest one; fewer, but one at least, once they have taken `budget` seconds."""
        seconds: list[float] = []
        read = memory.read_nbytes()
        while len(seconds) < count and (not seconds or sum(seconds) < budget):
            seconds.append(self._timed(lambda: self._decoder.step(self._next)))
        return {"seconds": seconds, "read": (memory.read_nbytes() - read) / len(seconds)}

    def products(self) -> dict[str, Any]:
        """The linear layers alone, each once."""
        start = time.perf_counter()
        nbytes = self._decoder.products()
        return {"seconds": time.perf_counter() - start, "nbytes": nbytes}

    def answer(self) -> dict[str, Any]:
        """The tokens since the last prompt, of the first sequence, and hashes of all logits that gave them."""
        return {"digests": self._digests, "answer": self._answer}

    def forget_peak(self) -> dict[str, Any]:
        """The peak is that of what comes from now on."""
        memory.forget_peak()
        return {"resident": memory.resident_nbytes()}

    def peak(self) -> dict[str, Any]:
        """The most memory since the process began, or since the last `forget_peak`."""
        return {"peak": memory.peak_nbytes(), "imported": self._imported}

    def _timed(self, forward: Any) -> float:
        start = time.perf_counter()
        logits = forward()
        self._next = logits.argmax(-1).tolist()
        seconds = time.perf_counter() - start
        words = logits.contiguous().view(self._torch.uint8).numpy()
        self._answer.append(self._next[0])
        self._digests.append(hashlib.blake2b(words, digest_size=16).hexdigest())
        return seconds


class Reader:
    """In the place of a contender: reads memory."""

    def __init__(self) -> None:
        from benchmarks.inference.bandwidth import Memory

        self._memory = Memory()
        self._threads = 1

    def threads(self, count: int) -> dict[str, Any]:
        self._threads = count
        return {}

    def read(self) -> dict[str, Any]:
        return {"gbs": self._memory.gbs(self._threads)}

    def kernel(self, profile: str) -> dict[str, Any]:
        from benchmarks.inference.bandwidth import cycles_a_word

        return dict(cycles_a_word(profile))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of a contender, or memory")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--cgroup", type=Path, help="a control group to join")
    parser.add_argument("--limit", type=int, help="of that group, in bytes")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.cgroup:
        memory.join(options.cgroup)
    # What libraries print must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    session: Any = (
        Reader()
        if options.name == "memory"
        else Session(options.name, options.size, options.folder, options.limit, options.threads)
    )
    answers.write(json.dumps({}) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        answers.write(json.dumps(getattr(session, order.pop("do"))(**order)) + "\n")


if __name__ == "__main__":
    main()
