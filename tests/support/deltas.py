"""Pairs of checkpoints, an older and a newer one of a model, for what is relative to a base."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np

from tests.support.checkpoint_models import container, layer, random_bytes, weights

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.checkpoint_models import Entry

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
RENAMED = "model.layers.0.renamed.weight"
ADDED = "model.layers.1.added.weight"


def step(data: bytes, seed: int, share: float = 0.01) -> bytes:
    """Some words of 16 bits, one up or down. Synthetic: changes do not depend on the words."""
    generator = np.random.default_rng(seed)
    words = np.frombuffer(data, np.uint16).copy()
    changed = generator.random(len(words)) < share
    words[changed] += generator.choice(np.array([1, 65535], np.uint16), int(changed.sum()))
    return words.tobytes()


def next_layer(index: int, seed: int, width: int = 96) -> list[Entry]:
    """`layer` after a training step: two tensors changed, the others did not."""
    found = []
    for name, dtype, shape, data in layer(index, seed, width):
        changed = step(data, seed) if name.endswith((".up_proj.weight", "attn.weight")) else data
        found.append((name, dtype, shape, changed))
    return found


def write_shards(root: Path, shards: dict[str, list[Entry]]) -> None:
    """Safetensors files with these tensors, and their index."""
    for name, entries in shards.items():
        (root / name).write_bytes(container(entries, {"format": "pt"}))
    home = {entry[0]: name for name, entries in shards.items() for entry in entries}
    index = {"metadata": {}, "weight_map": home}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))


def write_next(old: Path, new: Path, width: int = 96) -> None:
    """What training makes of `write_model(old)`: changed and equal tensors in the same files."""
    shutil.copytree(old, new)
    for shard, name in enumerate((FIRST, SECOND)):
        (new / name).write_bytes(container(next_layer(shard, 10 * shard, width), {"format": "pt"}, padding=shard))
    (new / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(container(next_layer(7, 70, width)))
    (new / "config.json").write_text('{"model_type": "llama", "step": 2}')
    (new / "tokenizer.json").write_text('{"vocab": "other"}')


def write_rearranged(old: Path, new: Path) -> None:
    """A newer model in which tensors were added, removed, renamed, reshaped, retyped and spread over other files."""
    shutil.copytree(old, new)
    for name in (FIRST, SECOND):
        (new / name).unlink()
    up, norm, _, attention = next_layer(0, 0)
    reshaped = ("model.layers.0.attn.weight", "F32", (96 * 96,), attention[3])
    renamed = (RENAMED, "BF16", up[2], layer(0, 0)[0][3])
    second = next_layer(1, 10)
    retyped = (second[0][0], "F16", second[0][2], second[0][3])
    added = (ADDED, "BF16", (50, 40), weights(2000, 99))
    write_shards(
        new,
        {
            "model-00001-of-00003.safetensors": [second[3], renamed, norm],
            "model-00002-of-00003.safetensors": [reshaped, added, retyped],
            "model-00003-of-00003.safetensors": [
                second[1],
                ("empty", "F32", (0, 3), b""),
                ("noise", "U8", (900,), random_bytes(900, 3)),
            ],
        },
    )
    (new / "tokenizer.json").unlink()
    (new / "generation_config.json").write_text("{}")
