"""A fine-tune of a real model, all-MiniLM-L6-v2, under FSDP2: the case that exact differences are best at."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import functional

from benchmarks import job
from benchmarks.data import minilm_path
from benchmarks.tables import Row, Table
from benchmarks.text import sentence_pairs
from benchmarks.traffic.sharded import Trained, sharded
from benchmarks.traffic.steps import COLUMNS, rows_of, turns_of
from tests.support import links

if TYPE_CHECKING:
    from torch import Tensor, nn

RATE, PAIRS, TOKENS, SIMILARITY_SCALE = 2e-5, 2, 32, 20.0
NAMES = ("FSDP2", "raw messages", "exact differences", "exact differences and gradients")
FULL = {"rates": ((200, 3), (1000, 4)), "warm_up": 20, "untimed": 1, "timed": 3}
QUICK = {"rates": ((1000, 1),), "warm_up": 1, "untimed": 1, "timed": 1}


def measure(quick: bool) -> list[Row]:
    return rows_of(job.run(rank, QUICK if quick else FULL, linked=True))


def rank(settings: Any) -> list[Row]:
    from transformers import AutoModel

    bert = AutoModel.from_pretrained(minilm_path(), dtype=torch.float32)
    model = Trained(sharded(bert, bert.encoder.layer), _loss)
    for step in range(settings["warm_up"]):
        model.step(RATE * (step + 1) / settings["warm_up"])
    return turns_of([(name, model) for name in NAMES], RATE, settings)


def _loss(model: nn.Module, step: int) -> Tensor:
    """How badly the first sentence of a docstring finds its rest among those of the batch of this rank."""
    texts = _texts()
    first = (step * dist.get_world_size() + dist.get_rank()) * PAIRS % (len(texts) - PAIRS)
    tokens = _tokens([side for pair in texts[first : first + PAIRS] for side in pair])
    words = (tokens != 0).float()[..., None]
    state = model(input_ids=tokens, attention_mask=words[..., 0].long()).last_hidden_state.float()
    vectors = functional.normalize((state * words).sum(1) / words.sum(1), dim=-1)
    scores = SIMILARITY_SCALE * vectors[::2] @ vectors[1::2].T
    return functional.cross_entropy(scores, torch.arange(PAIRS))


@cache
def _texts() -> list[tuple[str, str]]:
    return sentence_pairs(20)


def _tokens(texts: list[str]) -> Tensor:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_path() / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)
    return torch.tensor([each.ids for each in tokenizer.encode_batch(texts)])


TABLE = Table(
    "minilm",
    "Fine-tuning a real model",
    f"all-MiniLM-L6-v2 on pairs of sentences at a learning rate of {RATE:g}, {job.RANKS} ranks, {2 * PAIRS * TOKENS} "
    "tokens a rank. Turns, quotients and bytes are those of the table of steps.",
    COLUMNS,
    measure,
    missing=links.missing,
)
