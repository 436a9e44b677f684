"""What an element takes on the wire, there and back: by our counters, and by the interfaces of ranks."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks import job
from benchmarks.tables import Row, Table
from benchmarks.traffic.counted import counted
from benchmarks.traffic.sharded import NODES, WEIGHTS
from tensorwire.torch import traffic
from tensorwire.torch.traffic.codecs.codec import Raw
from tests.support import links

FULL, QUICK = {"elements": 1 << 20}, {"elements": 1 << 14}
# A codec, and the bits of an element by the formula: those of its code and its share of an FP32 scale.
CODECS: dict[str, tuple[Any, float | None]] = {
    "raw messages": (Raw(), 16),
    "int4, group 2048": (WEIGHTS, 4 + 32 / 2048),
    "int8, group 128, Hadamard 32": (NODES[0], 8 + 32 / 128),
    "int4, group 128, Hadamard 32": (NODES[1], 4 + 32 / 128),
    "exact": (traffic.Exact(), None),
}


def measure(quick: bool) -> list[Row]:
    rows: list[Row] = job.run(rank, QUICK if quick else FULL, linked=True)
    return rows


def rank(settings: Any) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(settings["elements"] * job.RANKS, generator=generator).bfloat16()
    random = torch.randint(-(1 << 15), 1 << 15, normal.shape, dtype=torch.int16, generator=generator)
    rows = [_row(name, "normal", codec, formula, normal) for name, (codec, formula) in CODECS.items()]
    # Random bits are NaN here and there, and travel all the same.
    return [*rows, _row("exact", "random bits", *CODECS["exact"], random.view(torch.bfloat16))]


def _row(name: str, numbers: str, codec: Any, formula: float | None, rows: torch.Tensor) -> Row:
    """Each rank sends as much to each other one; gradients are the same numbers, and travel back."""
    sent = rows.clone().requires_grad_()
    splits, others = [len(rows) // job.RANKS] * job.RANKS, len(rows) // job.RANKS * (job.RANKS - 1)
    come: list[torch.Tensor] = []
    there = job.measured(lambda: come.append(_sent(sent, splits, codec, name + numbers)), _counted)
    back = job.measured(lambda: come[0].backward(rows), _counted)
    both = {key: 8 * (there[key] + back[key]) / (2 * others) for key in ("counted_nbytes", "interface_nbytes")}
    return {
        "codec": name, "numbers": numbers, "formula": formula, "payload": both["counted_nbytes"],
        "interface": both["interface_nbytes"],
        "forgotten": (there["interface_nbytes"] + back["interface_nbytes"]) / there["counted_nbytes"],
    }  # fmt: skip


def _sent(rows: torch.Tensor, splits: list[int], codec: Any, name: str) -> torch.Tensor:
    return traffic.all_to_all(rows, splits, codec=codec, name=name)[0]


def _counted() -> int:
    return counted(torch.distributed.group.WORLD)[1]


TABLE = Table(
    "wire",
    "Bits on the wire",
    f"{job.RANKS} ranks send each other BF16 rows in an all-to-all, and gradients travel back: bits of an element by "
    "the codec's formula, by our counters, and by the interface of a rank, headers of packets included. The last "
    "column compares the bytes of the interface in both directions with those that are counted if one forgets the way "
    "back.",
    (
        ("codec", "codec", ""), ("numbers", "numbers", ""), ("formula", "formula", ".3f"),
        ("payload", "payload", ".3f"), ("interface", "interface", ".3f"), ("of the way there", "forgotten", ".2f"),
    ),
    measure,
    missing=links.missing,
)  # fmt: skip
