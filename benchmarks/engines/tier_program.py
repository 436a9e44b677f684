"""Chunks in vLLM's compressed tier: python -m benchmarks.engines.tier_program FOLDER, in an environment with vLLM.

FOLDER has an array `TOKENS.npy` for each size of chunks: a row of BF16 words for each chunk. What is printed is JSON, a
row for each tier. vLLM's factory makes the tiers, over a memory of ours: neither a model nor a GPU takes part.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOM = 0.4
"""The part of the chunks that the room would have place for if they were dense."""
CELLS = (("memory", "fast"), ("memory", "compact"), ("directory", "fast"))


def held(chunks: np.ndarray[Any, Any], place: str, profile: str) -> dict[str, Any]:
    """Store all chunks in their order, and load those that are still there."""
    from tests.support.vllm_chunks import REQUEST, Tier, key_of

    count, chunk_nbytes = chunks.shape
    num_dense = max(1, int(ROOM * count))
    room = num_dense * chunk_nbytes
    with TemporaryDirectory() as folder:
        options = {"directory": folder} if place == "directory" else {}
        before = _resident()
        each = Tier(count, chunk_nbytes=chunk_nbytes, capacity_bytes=room, profile=profile, **options)
        each.memory.view(np.uint8)[:] = chunks
        before += each.memory.nbytes
        for number in range(count):
            each.tier.submit_store(each.job([number], [number]))
        each.tier.drain_jobs()
        stored = sum(result.success for result in each.tier.get_finished_jobs())
        used = _on_disk(Path(folder)) if options else _resident() - before
        there = [number for number in range(count) if each.tier.lookup(key_of(number), REQUEST).name == "HIT"]
        each.memory[:] = 0
        loaded = each.load(there, there)
        equal = int((each.slots(there) == chunks[there]).all(axis=1).sum())
        each.tier.shutdown()
    return {
        "chunk_nbytes": chunk_nbytes, "place": place, "profile": profile, "dense": num_dense, "stored": stored,
        "held": len(there), "times": len(there) / num_dense, "loaded": len(loaded.successful_keys), "equal": equal,
        "used": used / room,
    }  # fmt: skip


def _resident() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


def _on_disk(folder: Path) -> int:
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    held(np.zeros((2, 4096), np.uint8), "memory", "fast")  # what is imported and made once
    for path in sorted(folder.glob("*.npy"), key=lambda each: int(each.stem)):
        chunks = np.load(path).view(np.uint8)
        for place, profile in CELLS:
            yield {"tokens": int(path.stem), **held(chunks, place, profile)}


if __name__ == "__main__":
    print(json.dumps(list(rows(Path(sys.argv[1])))))
