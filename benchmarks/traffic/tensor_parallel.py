"""Loss of a training under tensor parallelism whose messages go through lossy codecs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from benchmarks import gpt, job
from benchmarks.tables import Row, Table
from benchmarks.traffic import paired
from benchmarks.traffic.counted import counted
from benchmarks.traffic.errors import ACTIVATIONS, TACO
from tensorwire.torch import traffic
from tensorwire.torch.traffic.codecs.codec import Raw

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

LAYERS, WIDTH, ROWS, PEAK = 2, 64, 8, 1e-3
CODECS = {"raw messages": Raw()} | ACTIVATIONS
ONCE = (TACO, "E5M2", "int8", "int8, Hadamard 32", "int4, Hadamard 32")  # no target needs their mean
FULL = {"seeds": [0, 1, 2], "steps": 150}
QUICK = {"seeds": [0], "steps": 2}
PLAN = {
    **dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel),
    **dict.fromkeys(("output", "down"), RowwiseParallel),
}


def measure(quick: bool) -> list[Row]:
    rows = paired.measured(_run, list(CODECS)[: 2 if quick else None], QUICK if quick else FULL, once=ONCE)
    return [row | {"more": row["gap"] / (row["loss"] - row["gap"])} for row in rows]


@cache
def _joined() -> tuple[DeviceMesh, dict[str, str]]:
    """A mesh for all runs, since DTensor sends through the first of meshes that are equal; and the run's codec."""
    now: dict[str, str] = {}
    traffic.register_backend("measured", lambda name, call: CODECS[now["codec"]], minimum=0)
    backend = {"tensor": "measured"}
    return init_device_mesh("cpu", (job.RANKS,), mesh_dim_names=("tensor",), backend_override=backend), now


def _run(settings: dict[str, Any]) -> Row:
    mesh, now = _joined()
    now["codec"], before = settings["name"], counted(mesh.get_group())
    model = gpt.GPT(LAYERS, WIDTH, settings["seed"])
    for layer in model.layers:
        parallelize_module(layer, mesh, {name: style() for name, style in PLAN.items()})
    optimizer = gpt.optimizer_of(model.parameters())
    for step in range(1, settings["steps"] + 1):
        for group in optimizer.param_groups:
            group["lr"] = gpt.rate_at(step, PEAK)
        optimizer.zero_grad()
        model(gpt.batch(step, ROWS, settings["seed"])).backward()
        optimizer.step()
    raw, sent = (after - first for after, first in zip(counted(mesh.get_group()), before, strict=True))
    with torch.no_grad():
        loss = float(model(gpt.validation_batch(256)))
    return {"loss": loss, "bits": 32 * sent / raw}


TABLE = Table(
    "tensor-parallel",
    "Loss under tensor parallelism",
    f"A model of {LAYERS} layers of width {WIDTH} on {job.RANKS} ranks that share each layer, {FULL['steps']} steps, "
    "FP32. All messages of the group go through the codec, forward and backward. Validation loss in nats. TACO is E4M3 "
    "with Hadamard 128 and its first scale, which `Float8` leaves out.",
    (
        ("codec", "run", ""), ("seed", "seed", "d"), ("bits an element", "bits", ".2f"), ("loss", "loss", ".4f"),
        ("minus raw", "gap", "+.4f"), ("part more", "more", "+.2%"),
    ),
    measure,
)  # fmt: skip
