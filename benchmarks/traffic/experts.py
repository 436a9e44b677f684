"""Tokens of a mixture of experts in the all-to-all: exact, quantized, and the clusters of LSH-MoE as contrasts."""

from __future__ import annotations

from typing import Any

from benchmarks.environment import log
from benchmarks.traffic import job, moe
from benchmarks.traffic.clusters import Clusters, leak
from benchmarks.traffic.table import Row, Table
from tensorwire.torch.traffic import Exact, Grid
from tensorwire.torch.traffic.codecs.codec import Raw

RAW, EXACT, GRID = "raw messages", "exact", "int4, group 128"
# A codec, and what travels in place of the tokens.
WAYS: dict[str, tuple[Any, Any]] = {
    RAW: (Raw(), None),
    EXACT: (Exact(), None),
    GRID: (Grid(4, 128), None),
    "clusters (LSH-MoE)": (Raw(), Clusters()),
    "random clusters": (Raw(), Clusters(random=True)),
    "clusters, not compensated": (Raw(), Clusters(compensated=False)),
    "random clusters, not compensated": (Raw(), Clusters(random=True, compensated=False)),
}
FULL = {"seeds": [0, 1, 2], "steps": 300}
QUICK = {"seeds": [0], "steps": 2}


def measure(quick: bool) -> list[Row]:
    settings = QUICK if quick else FULL
    rows = []
    for seed in settings["seeds"]:
        for name in WAYS:
            log(f"{name}, seed {seed}")
            found = job.run(__name__, {"name": name, "steps": settings["steps"], "seed": seed})
            rows.append({"way": name, "seed": seed} | found)
    raw = {row["seed"]: row for row in rows if row["way"] == RAW}
    return [
        {key: value for key, value in row.items() if key not in ("digest", "sent")}
        | {
            "part": row["sent"] / raw[row["seed"]]["sent"],
            "gap": row["loss"] - raw[row["seed"]]["loss"],
            "same": row["digest"] == raw[row["seed"]]["digest"],
        }
        for row in rows
    ]


def main() -> None:
    with job.joined() as settings:
        codec, way = WAYS[settings["name"]]
        found = moe.train(codec, settings["steps"], settings["seed"], way)
        leaked = max(job.of_all(leak(codec, way)))
        job.answer({"loss": found.loss, "sent": found.sent_nbytes, "digest": found.digest, "leak": leaked})


TABLE = Table(
    "experts",
    "Tokens of a mixture of experts",
    f"An expert on each of {job.RANKS} ranks, two for each token, {FULL['steps']} steps; tokens travel as BF16. "
    "The loss is that of the saved model, run without a codec. Bytes are a part of those of raw messages. The last "
    "column says by how much a later byte changes earlier logits: a causal model has 0 there.",
    (
        ("what travels", "way", ""), ("seed", "seed", "d"), ("bytes", "part", ".3f"), ("loss", "loss", ".4f"),
        ("minus raw", "gap", "+.4f"), ("bits of raw messages", "same", ""), ("later bytes", "leak", ".2g"),
    ),
    measure,
)  # fmt: skip

if __name__ == "__main__":
    main()
