"""The time of a training step under FSDP2 at the rates of several links, and what travels in it."""

from __future__ import annotations

from statistics import median, quantiles
from typing import Any

import torch

from benchmarks import gpt, job
from benchmarks.tables import Row, Table
from benchmarks.traffic.counted import counted
from benchmarks.traffic.sharded import CONTENDERS, Trained, trained_gpt
from tensorwire.torch import traffic
from tests.support import links

# The rate of links, and how many rounds: the slowest link takes longest, and its times vary least.
RATES = ((50, 3), (200, 5), (1000, 5), (None, 5))
LAYERS, WIDTH, ROWS, PEAK = 7, 256, 2, 3e-4
FULL = {"rates": RATES, "layers": LAYERS, "warm_up": gpt.WARM_UP, "untimed": 1, "timed": 3}
QUICK = {"rates": ((1000, 1),), "layers": 1, "warm_up": 2, "untimed": 1, "timed": 1}
FP32 = ", FP32 gradients"


def measure(quick: bool) -> list[Row]:
    return rows_of(job.run(rank, QUICK if quick else FULL, linked=True))


def rows_of(turns: list[Row]) -> list[Row]:
    """One for each rate and contender."""
    return [_row(rate, name, turns) for rate in dict.fromkeys(turn["rate"] for turn in turns) for name in _names(turns)]


def _names(turns: list[Row]) -> list[str]:
    return list(dict.fromkeys(turn["contender"] for turn in turns))


def name_of(rate: float | None) -> str:
    return f"{rate:g} Mbit/s" if rate else "not shaped"


def _row(rate: float | None, name: str, turns: list[Row]) -> Row:
    """Medians of all turns; of quotients, by the turns of the same round."""

    def of(contender: str) -> list[Row]:
        return [turn for turn in turns if (turn["rate"], turn["contender"]) == (rate, contender)]

    own = of(name)
    times = [turn["seconds"] for turn in own]
    row: Row = {"link": name_of(rate), "contender": name}
    row["quartiles"] = quantiles(times, n=4)[::2] if len(times) > 1 else times * 2
    for key in ("seconds", "cpu_seconds", "interface_nbytes", "counted_nbytes", "kept", "bits"):
        row[key] = median(turn[key] for turn in own)
    for other in ("FSDP2", "raw messages"):
        pairs = list(zip(own, of(other + (FP32 if name.endswith(FP32) else "")), strict=False))
        for what, key in (("", "seconds"), ("bytes ", "interface_nbytes")):
            row[f"{what}of {other}"] = median(mine[key] / theirs[key] for mine, theirs in pairs) if pairs else None
    return row


def rank(settings: Any) -> list[Row]:
    models = {
        "": trained_gpt(settings["layers"], WIDTH, ROWS),
        FP32: trained_gpt(settings["layers"], WIDTH, ROWS, gradients=torch.float32),
    }
    for model in models.values():
        for step in range(settings["warm_up"]):
            model.step(gpt.rate_at(step + 1, PEAK))
    contenders = [(name, models[""]) for name in CONTENDERS]
    contenders += [(name + FP32, models[FP32]) for name in ("FSDP2", "exact differences")]
    return turns_of(contenders, PEAK, settings)


def turns_of(contenders: list[tuple[str, Trained]], learning_rate: float, settings: dict[str, Any]) -> list[Row]:
    """In a rank: all contenders in turns, at the rate of each link."""
    turns = []
    for rate, rounds in settings["rates"]:
        job.set_rate(rate)
        for number in range(rounds):
            job.say(f"{name_of(rate)}, round {number + 1} of {rounds}")
            for name, model in contenders:
                found = _turn(model, CONTENDERS[name.removesuffix(FP32)], learning_rate, settings)
                turns.append({"rate": rate, "contender": name} | found)
    return turns


def _turn(model: Trained, options: dict[str, Any] | None, rate: float, settings: dict[str, Any]) -> Row:
    attachment = None if options is None else traffic.attach_fsdp(model.model, **options)
    for _ in range(settings["untimed"]):  # the first message after attaching is plain
        model.step(rate)
    before = _gathered(model)
    steps = [job.measured(lambda: model.step(rate), model.sent_nbytes) for _ in range(settings["timed"])]
    raw, sent = (after - first for after, first in zip(_gathered(model), before, strict=True))
    found: Row = {key: sum(step[key] for step in steps) / len(steps) for key in steps[0]}
    parameters = sum(each.numel() for each in model.model.parameters())
    found["kept"] = sum(row.kept_nbytes for row in model.rows()) / (2 * parameters)
    # Forward and backward gather each weight once.
    found["bits"] = 2 * 16 * sent / raw if raw else 32
    if attachment is not None:
        attachment.detach()
    return found


def _gathered(model: Trained) -> tuple[int, int]:
    return counted(model.model, lambda row: row.direction == "all_gather")


COLUMNS = (
    ("link", "link", ""), ("contender", "contender", ""), ("seconds", "seconds", ".3f"),
    ("quartiles", "quartiles", ".3f"), ("CPU seconds", "cpu_seconds", ".3f"), ("of FSDP2", "of FSDP2", ".2f"),
    ("of raw messages", "of raw messages", ".2f"), ("interface bytes", "interface_nbytes", ",.0f"),
    ("counted bytes", "counted_nbytes", ",.0f"), ("bytes of FSDP2", "bytes of FSDP2", ".3f"),
    ("bytes of raw messages", "bytes of raw messages", ".3f"),
    ("bits a weight in all-gathers", "bits", ".2f"), ("memory kept", "kept", ".3f"),
)  # fmt: skip

TABLE = Table(
    "steps",
    "Time and bytes of a step",
    f"FSDP2 with `reshard_after_forward`, {job.RANKS} ranks on one machine, each behind a link of this rate: {LAYERS} "
    f"layers of width {WIDTH}, {ROWS * gpt.CONTEXT} tokens a rank, a learning rate of {PEAK:g}. Contenders take turns. "
    f"A turn is {FULL['timed']} steps, and quotients are those of turns of the same round. Bytes are those that a rank "
    "sends in a step: by its interface, headers of packets included, and by our counters. CPU seconds are those of all "
    "ranks. Gradients are BF16 where the name does not say more. The collectives of gloo, which FSDP2 uses, send more "
    "bytes than an all-to-all of the same tensors: the raw messages are those of our own exchange. The memory that a "
    "rank keeps for codecs is a part of that of all BF16 parameters.",
    COLUMNS,
    measure,
    missing=links.missing,
)  # fmt: skip
