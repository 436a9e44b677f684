"""Error-bounded vectors in the all-to-all of a recommendation model (DLRM), and the bound itself."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.environment import log
from benchmarks.traffic import dlrm, job
from benchmarks.traffic.table import Row, Table
from tensorwire.torch.traffic import Bounded, Exact, Float8
from tensorwire.torch.traffic.codecs.codec import Raw

FP32, COARSE = "raw messages", "bound 0.3"
CODECS: dict[str, Any] = {
    FP32: Raw(),
    "exact": Exact(),
    "bound 0.03, entropy coding alone": Bounded(0.03, relative=True),
    "bound 0.03": Bounded(0.03, relative=True, row=dlrm.DIM),
    "FP8": Float8("e4m3", dlrm.DIM),
    COARSE: Bounded(0.3, relative=True, row=dlrm.DIM),
}
FULL = {"seeds": [0, 1, 2, 3, 4], "steps": 250, "elements": 10**8}
QUICK = {"seeds": [0], "steps": 2, "elements": 10**6}
MESSAGE = 1 << 14


def measure(quick: bool) -> list[Row]:
    settings = QUICK if quick else FULL
    rows = []
    for seed in settings["seeds"]:
        for name in CODECS:
            log(f"{name}, seed {seed}")
            found = job.run(__name__, {"codec": name, "steps": settings["steps"], "seed": seed})
            rows.append({"codec": name, "seed": seed} | found)
    raw = {row["seed"]: row["auc"] for row in rows if row["codec"] == FP32}
    for row in rows:
        row["gap"] = row["auc"] - raw[row["seed"]]
    return [*rows, _violations(settings["elements"])]


def main() -> None:
    with job.joined() as settings:
        found = dlrm.train(CODECS[settings["codec"]], settings["steps"], settings["seed"])
        job.answer({"auc": found.auc, "times": found.raw_nbytes / found.sent_nbytes})


def _violations(elements: int) -> Row:
    """Elements that are wrong by more than the bound allows, e (1 + 2^-20), and messages that had to be lossless."""
    codec, wrong, lossless = Bounded(0.03, relative=True), 0, 0
    generator, out = torch.Generator().manual_seed(0), torch.empty(MESSAGE)
    for _ in range(elements // MESSAGE):
        values = torch.randn(MESSAGE, generator=generator)
        message = codec.encode(values)
        if message is None:
            lossless += 1
            continue
        codec.decode(message, out)
        bound = codec.bound * float(values.max() - values.min()) * (1 + 2**-20)
        wrong += int(((out.double() - values.double()).abs() > bound).sum())
    return {"codec": f"bound 0.03, {elements:,} normal numbers", "violations": wrong, "lossless": lossless}


TABLE = Table(
    "recommendation",
    "Error-bounded vectors of a recommendation model",
    f"Synthetic clicks with a planted signal; tables of 30 to 100,000 rows on {job.RANKS} ranks, {FULL['steps']} steps."
    " The area under the ROC curve is that of the model as it is saved, looked up without a codec. Bytes are those of "
    "the vectors, against FP32. `Bounded` sends repeated rows once where it knows how long a row is.",
    (
        ("codec", "codec", ""), ("seed", "seed", "d"), ("area", "auc", ".4f"), ("minus raw", "gap", "+.4f"),
        ("times fewer bytes", "times", ".2f"), ("beyond the bound", "violations", "d"),
        ("lossless messages", "lossless", "d"),
    ),
    measure,
)  # fmt: skip

if __name__ == "__main__":
    main()
