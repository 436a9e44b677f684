"""How long a version takes over links: computed from its costs, and over two real ones between two processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import job
from benchmarks.sync import codecs, cost, transfer
from benchmarks.tables import Row, Table
from tests.support import links

if TYPE_CHECKING:
    from collections.abc import Iterator

GIGABYTES = 2.0
"""A model of a billion BF16 weights."""
GIGABITS = (0.1, 1.0, 10.0)
FULL = {"tensors": 4, "words": 1 << 23, "turns": 3, "megabits": (100, 1000, 10000)}
QUICK = {"tensors": 2, "words": 1 << 16, "turns": 1, "megabits": (1000,)}
NAMES = (codecs.PLAIN, codecs.FAST, codecs.COMPACT, codecs.XOR, codecs.OVERWRITE, cost.OURS)


def computed(costs: list[Row]) -> Iterator[Row]:
    """Seconds of stages one after the other, and side by side, where the longest one counts."""
    stages = {row["with"]: [GIGABYTES * row[stage] for stage in ("publish", "apply")] for row in costs}
    bits = {row["with"]: 8 * GIGABYTES * row["nbytes"] for row in costs}
    for gigabits in GIGABITS:
        dense = 8 * GIGABYTES / gigabits
        yield {"link": gigabits, "with": codecs.DENSE, "serial": dense, "pipelined": dense}
        for name in NAMES:
            all_stages = [*stages[name], bits[name] / 1e9 / gigabits]
            serial, pipelined = sum(all_stages), max(all_stages)
            yield {
                "link": gigabits, "with": name, "serial": serial, "pipelined": pipelined,
                "serial, of dense": dense / serial, "pipelined, of dense": dense / pipelined,
            }  # fmt: skip


def break_even(costs: list[Row]) -> Iterator[Row]:
    """The rate at which dense takes as long: 8 bits a byte are sent in the time of the stages."""
    by_name = {row["with"]: row for row in costs}
    for name in NAMES:
        row = by_name[name]
        saved = 8 * (1 - row["nbytes"] / 1e9)
        yield {
            "with": name, "serial": saved / (row["publish"] + row["apply"]),
            "pipelined": 8 / max(row["publish"], row["apply"]),
        }  # fmt: skip


def measure_shaped(quick: bool) -> list[Row]:
    settings: Any = QUICK if quick else FULL
    rows: list[Row] = job.run(transfer.rank, settings, ranks=2, linked=True)
    dense = {row["link"]: row for row in rows if row["with"] == codecs.DENSE}
    for row in dense.values():
        row["reached"] = 16 * settings["tensors"] * settings["words"] / 1e9 / row["pipelined"]
    return [
        row | {f"{how}, of dense": dense[row["link"]][how] / row[how] for how in ("serial", "pipelined")}
        for row in rows
    ]


_COLUMNS = (
    ("link, Gbit/s", "link", "g"), ("with", "with", ""), ("in turn, s", "serial", ".3f"),
    ("pipelined, s", "pipelined", ".3f"), ("in turn, times dense", "serial, of dense", ".2f"),
    ("pipelined, times dense", "pipelined, of dense", ".2f"),
)  # fmt: skip
COMPUTED = Table(
    "links",
    "A billion weights over a link, computed",
    "From the CPU seconds and bytes above, with one core at each end: to publish, to send and to apply in turn; and "
    "pipelined, where the longest of the three counts. Dense is the link alone: its copies are not counted. The disk "
    "is not in it, nor is the latency of a link.",
    _COLUMNS,
    lambda quick: list(computed(cost.measure(quick))),
)
BREAK_EVEN = Table(
    "break-even",
    "From which rate on dense is faster",
    "Computed from the same: on faster links than this, in Gbit/s, all weights arrive sooner than what changed.",
    (("with", "with", ""), ("in turn", "serial", ".1f"), ("pipelined", "pipelined", ".1f")),
    lambda quick: list(break_even(cost.measure(quick))),
)
SHAPED = Table(
    "shaped",
    "Over links that have a rate",
    f"Measured: two processes, each on a core and a host of its own, with a link between them that has the rate. "
    f"{FULL['tensors']} tensors of the same kind, {2 * FULL['tensors'] * FULL['words'] / 1e6:.0f} MB, from arrays to "
    f"arrays; medians of {FULL['turns']} turns. In turn: all is encoded, then sent, then applied. Pipelined: tensor by "
    "tensor, while a thread at each end sends or receives. Reached is the rate at which all weights came.",
    (*_COLUMNS[:2], ("reached, Gbit/s", "reached", ".2f"), *_COLUMNS[2:]),
    measure_shaped,
    missing=links.missing,
)
