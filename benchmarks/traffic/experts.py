"""Tokens of a mixture of experts in the all-to-all: exact, quantized, and the clusters of LSH-MoE as contrasts."""

from __future__ import annotations

from typing import Any

from benchmarks import job
from benchmarks.tables import Row, Table
from benchmarks.traffic import moe, paired
from benchmarks.traffic.clusters import Clusters, leak
from tensorwire.torch.traffic import Exact, Grid
from tensorwire.torch.traffic.codecs.codec import Raw

EXACT, INT4, INT8, CLUSTERS = "exact", "int4, group 128", "int8, group 128", "clusters (LSH-MoE)"
# A codec, and what travels in place of the tokens.
WAYS: dict[str, tuple[Any, Any]] = {
    "raw messages": (Raw(), None),
    EXACT: (Exact(), None),
    INT4: (Grid(4, 128), None),
    INT8: (Grid(8, 128), None),
    CLUSTERS: (Raw(), Clusters()),
    "random clusters": (Raw(), Clusters(random=True)),
    "clusters, not compensated": (Raw(), Clusters(compensated=False)),
    "random clusters, not compensated": (Raw(), Clusters(random=True, compensated=False)),
}
FULL = {"seeds": [0, 1, 2, 3], "steps": 300}
QUICK = {"seeds": [0], "steps": 2}


def measure(quick: bool) -> list[Row]:
    once = [name for name, (_, way) in WAYS.items() if way is not None or name == EXACT]
    return paired.measured(_run, list(WAYS), QUICK if quick else FULL, once=once)


def _run(settings: dict[str, Any]) -> Row:
    codec, way = WAYS[settings["name"]]
    found = moe.train(codec, settings["steps"], settings["seed"], way)
    leaked = max(job.of_all(leak(codec, way)))
    return {"loss": found.loss, "nbytes": found.sent_nbytes, "digest": found.digest, "leak": leaked}


TABLE = Table(
    "experts",
    "Tokens of a mixture of experts",
    f"An expert on each of {job.RANKS} ranks, two for each token, {FULL['steps']} steps; tokens travel as BF16. "
    "The loss is that of the saved model, run without a codec; seeds are paired. int8 shows the noise: so small an "
    "error does no harm, but each change sends a training another way. Bytes are a part of those of raw messages. The "
    "last column says by how much a later byte changes earlier logits: a causal model has 0 there.",
    (
        ("what travels", "run", ""), ("seed", "seed", "d"), ("bytes", "part", ".3f"), ("loss", "loss", ".4f"),
        ("minus raw", "gap", "+.4f"), ("bits of raw messages", "same", ""), ("later bytes", "leak", ".2g"),
    ),
    measure,
)  # fmt: skip
