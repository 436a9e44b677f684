"""The benchmark of a trainer's directory, on a model that trains in seconds."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from benchmarks.environment import RESULTS
from benchmarks.tables import of_columns

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SHARE = 0.99
"""The target: the directory gains what its tensors gain, less 1 %."""


def small() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(vocab_size=2000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
    )


@pytest.mark.filterwarnings("ignore")
def test_a_directory_gains_what_its_tensors_gain() -> None:
    from benchmarks.codecs import trainer

    generator = random.Random(1)
    texts = [[generator.randrange(2000) for _ in range(16)] for _ in range(2 * trainer.BATCH)]
    found = trainer.rows(2, texts, small)
    assert [row["dtype"] for row in found] == ["F32", "BF16"]
    for row in found:
        assert row["share"] == row["directory_ratio"] / row["tensors_ratio"] > 0.95  # of so small a model
        assert row["directory_ratio"] > row["model_alone_ratio"] > 1
        assert f"| {row['dtype']} | " in of_columns(trainer.COLUMNS, found)


def test_the_target_is_met() -> None:
    rows = json.loads((RESULTS / "trainer.json").read_text())["rows"]
    assert [row["dtype"] for row in rows if row["share"] >= SHARE] == ["F32", "BF16"]
