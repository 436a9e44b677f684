"""The pause of an engine: a commit for a directory of many shards."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from safetensors.numpy import save_file

from benchmarks.tables import Row, Table
from benchmarks.timing import spent
from tensorwire.codec.frame import core
from tensorwire.sync import Follower, Publisher

SHARDS, TURNS = 100, 9
WORDS = 1 << 18
DECODERS = {name: (core, name) for name in ("decode", "decode_and_hash", "block_infos")}


def measure(quick: bool) -> list[Row]:
    shards = 5 if quick else SHARDS
    words = np.random.default_rng(0).integers(0, 1 << 16, (shards, WORDS), np.uint16)
    seconds, decoded, staged = [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _write_shards(words, place / "served")
        publisher, follower = (
            Publisher(place / "store", threads=1),
            Follower(place / "store", place / "served", threads=1),
        )
        publisher.publish(_tensors(words))
        follower.stage()
        follower.commit()
        for _ in range(1 if quick else TURNS):
            words[:, ::50] ^= 1
            publisher.publish(_tensors(words))
            with spent(DECODERS) as staging:
                follower.stage()
            with spent(DECODERS) as committing:
                began = time.perf_counter()
                follower.commit()
                seconds.append(time.perf_counter() - began)
            staged += sum(each.calls for each in staging.values())
            decoded += sum(each.calls for each in committing.values())
    return [{"shards": shards, "turns": len(seconds), "seconds": median(seconds), "longest": max(seconds),
             "staging": staged, "committing": decoded}]  # fmt: skip


def _tensors(words: np.ndarray) -> dict[str, np.ndarray]:
    return {f"layers.{index}.weight": each for index, each in enumerate(words)}


def _write_shards(words: np.ndarray, folder: Path) -> None:
    """A checkpoint whose shards the follower keeps."""
    folder.mkdir()
    for index, (name, each) in enumerate(_tensors(words).items(), 1):
        save_file({name: each}, folder / f"model-{index:05d}-of-{len(words):05d}.safetensors")


TABLE = Table(
    "commit",
    "The pause: a commit",
    f"A directory of {SHARDS} shards, all of which change in each version. Wall seconds of `commit`, with the wait for "
    "the disk in them; and calls of the core's decoders while the versions were staged, and while they were committed.",
    (("shards", "shards", "d"), ("commits", "turns", "d"), ("seconds, median", "seconds", ".4f"),
     ("longest", "longest", ".4f"), ("decoders called by stage", "staging", ",d"),
     ("by commit", "committing", "d")),
    measure,
)  # fmt: skip
