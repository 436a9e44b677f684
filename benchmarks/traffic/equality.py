"""Whether parameters have the same bits with codecs as without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks import gpt, job
from benchmarks.tables import Row, Table
from benchmarks.traffic.sharded import CONTENDERS, trained_gpt
from tensorwire.torch import traffic

if TYPE_CHECKING:
    from torch import nn

LAYERS, WIDTH, ROWS, PEAK = 2, 64, 2, 1e-3
ASYNC = ", asynchronous"
# What is attached, and what its masters are compared with.
PAIRS = (
    ("exact differences", "FSDP2", "same"),
    ("exact differences and gradients", "raw messages", "same"),
    ("exact differences and gradients", "FSDP2", "other sums"),
)


def measure(quick: bool) -> list[Row]:
    rows: list[Row] = job.run(rank, {"steps": 3 if quick else 200})
    return rows


def rank(settings: Any) -> list[Row]:
    rows = []
    for reshard in (True, False):
        for ahead in (True, False):
            steps = settings["steps"]
            names = dict.fromkeys(name for pair in PAIRS for name in pair[:2])
            masters = {name: _masters(CONTENDERS[name], steps, reshard, ahead) for name in names}
            how = "resharded" if reshard else "not resharded"
            job.say(how + ASYNC * ahead)
            rows += [
                {"what": what, "with": other, "how": how + ASYNC * ahead, "steps": steps, "expected": expected,
                 "same": masters[what] == masters[other]}
                for what, other, expected in PAIRS
            ]  # fmt: skip
    return rows


def _masters(options: dict[str, Any] | None, steps: int, reshard: bool, ahead: bool) -> list[str]:
    model = trained_gpt(LAYERS, WIDTH, ROWS, reshard=reshard)
    attachment = None if options is None else traffic.attach_fsdp(model.model, **options)
    for module in _modules(model.model):
        module._set_unshard_async_op(ahead)
    for step in range(1, steps + 1):
        model.step(gpt.rate_at(step, PEAK))
    if attachment is not None:
        attachment.detach()
    return model.masters()


def _modules(model: nn.Module) -> list[Any]:
    return [each for each in model.modules() if isinstance(each, torch.distributed.fsdp.FSDPModule)]


TABLE = Table(
    "equality",
    "The same bits",
    f"A model of {LAYERS} layers of width {WIDTH} on {job.RANKS} ranks, trained with and without codecs: whether the "
    "masters of all ranks have the same bits at the end. Gradients through our exchange have the bits of our own "
    "raw messages; gloo adds in another order.",
    (
        ("with", "what", ""), ("compared with", "with", ""), ("FSDP2", "how", ""), ("steps", "steps", "d"),
        ("expected", "expected", ""), ("same bits", "same", ""),
    ),
    measure,
)  # fmt: skip
