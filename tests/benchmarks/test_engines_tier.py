"""The benchmark of vLLM's compressed tier: its chunks, and how it judges."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.engines import tier


def test_a_chunk_has_what_its_tokens_have_in_each_tensor() -> None:
    keys, values = np.arange(8, dtype=np.uint16).reshape(4, 2), np.arange(100, 108, dtype=np.uint16).reshape(4, 2)
    chunks = tier._chunks({(0, "keys"): keys, (0, "values"): values}, 2)
    assert chunks.tolist() == [[0, 1, 2, 3, 100, 101, 102, 103], [4, 5, 6, 7, 104, 105, 106, 107]]


def test_targets_ask_for_room_in_memory_and_for_every_bit() -> None:
    row = {"tokens": 64, "profile": "fast", "held": 150, "equal": 150, "times": 1.47}
    rows = [{**row, "place": "memory"}, {**row, "place": "directory", "times": 1.4, "equal": 149}]
    assert [verdict.met for verdict in tier.evaluate({"tier": rows})] == [True, True, False]
