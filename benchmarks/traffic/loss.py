"""What 4-bit weights do to a training: loss, and how far the copies are from the masters."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import gpt, job
from benchmarks.tables import Row, Table
from benchmarks.traffic import paired
from benchmarks.traffic.sharded import CONTENDERS, WEIGHTS, Trained, trained_gpt
from tensorwire.torch import traffic

if TYPE_CHECKING:
    from torch import Tensor

    from tensorwire.torch.traffic.codecs.codec import Codec

LAYERS, WIDTH, ROWS, PEAK = 2, 64, 2, 1e-3
BASELINE, EXACT, DIRECT, CLOSED, OPEN, SDP4BIT = (
    "BF16", "exact differences", "direct 4-bit weights", "4-bit differences, closed loop",
    "4-bit differences, open loop", "SDP4Bit",
)  # fmt: skip
LOOKS = (30, 100, 300, 1000)
FULL = {"seeds": [0, 1, 2], "steps": 300, "long": 1000, "every": 10}
QUICK = {"seeds": [0], "steps": 6, "long": 0, "every": 3}


@dataclass(frozen=True)
class Direct:
    """The weights themselves are quantized, and not what changed."""

    codec: Codec = WEIGHTS
    lossless = False

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor | None:
        return self.codec.encode(tensor, None, key)

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        self.codec.decode(message, out, None)


@dataclass(frozen=True)
class Open:
    """What changed in the master is quantized, and the receivers add it up. Errors add up as well."""

    codec: Codec = WEIGHTS
    lossless = False
    _last: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor | None:
        before = self._last.pop() if self._last else base
        self._last.append(tensor.clone())
        return self.codec.encode(tensor, before, key)

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        self.codec.decode(message, out, base)


def _open() -> dict[str, Any]:
    """A codec for each module, since it remembers."""
    codec_of = cache(lambda name: Open())
    return {"weights": lambda name, step: codec_of(name)}


RUNS = {
    BASELINE: lambda: None,
    EXACT: dict,
    DIRECT: partial(dict, weights=Direct()),
    CLOSED: partial(dict, weights=WEIGHTS),
    OPEN: _open,
    SDP4BIT: lambda: CONTENDERS["SDP4Bit"],
}


def measure(quick: bool) -> list[Row]:
    return paired.measured(_run, list(RUNS), QUICK if quick else FULL)


def _run(settings: dict[str, Any]) -> Row:
    model = trained_gpt(LAYERS, WIDTH, ROWS, seed=settings["seed"])
    options = RUNS[settings["name"]]()
    attachment = None if options is None else traffic.attach_fsdp(model.model, **options)
    found: Row = {"curve": [], "distances": []}
    long = settings["long"] if settings["seed"] == 0 and settings["name"] in (BASELINE, CLOSED) else 0
    last = max(settings["steps"], long)
    for step in range(1, last + 1):
        model.step(gpt.rate_at(step, PEAK))
        if step % settings["every"] == 0:
            found["curve"].append(_loss(model.model, gpt.validation_batch(64)))
        if step in LOOKS or step == last:
            found["distances"].append(_distance(model))
        if step == settings["steps"]:
            many = gpt.validation_batch(256)
            found |= {"loss": _loss(model.model, many), "saved": _saved_loss(model, many), "digest": model.masters()}
    if attachment is not None:
        attachment.detach()
    return found


@torch.no_grad()
def _loss(model: torch.nn.Module, tokens: Tensor) -> float:
    return float(model(tokens))


def _saved_loss(model: Trained, tokens: Tensor) -> float:
    """The loss of the masters, as they would be saved and loaded again in BF16."""
    plain = gpt.GPT(LAYERS, WIDTH)
    plain.load_state_dict({name: each.full_tensor() for name, each in model.model.state_dict().items()})
    return _loss(plain.bfloat16(), tokens)


def _distance(model: Trained) -> float:
    """|copy - master| / |master|, over all weights that are gathered."""
    apart = size = 0.0
    copies = _copies(model)
    for name, master in _full(model).items():
        apart += float((copies[name].float() - master).square().sum())
        size += float(master.square().sum())
    return (apart / size) ** 0.5


def _full(model: Trained) -> dict[str, Tensor]:
    return {name: each.full_tensor().detach() for name, each in model.model.named_parameters()}


def _copies(model: Trained) -> dict[str, Tensor]:
    """The BF16 weights that a rank computes with."""
    modules = [*model.model.layers, model.model]
    for module in modules:
        module.unshard()
    copies = {name: each.detach().clone() for name, each in model.model.named_parameters()}
    for module in modules:
        module.reshard()
    return copies


TABLE = Table(
    "loss",
    "Loss with 4-bit weights and gradients",
    f"A model of {LAYERS} layers of width {WIDTH} under FSDP2 on {job.RANKS} ranks, {ROWS * gpt.CONTEXT} tokens a rank,"
    f" a peak rate of {PEAK:g}; paired seeds. Losses are those of validation after {FULL['steps']} steps, in nats: "
    "with the copies that ranks compute with, and with the masters as they are saved. The distance is "
    f"|copy - master| / |master| at steps {', '.join(map(str, LOOKS))}, as far as a run goes; BF16 alone rounds. "
    "Direct weights and the open loop are contrasts: nobody should train so.",
    (
        ("run", "run", ""), ("seed", "seed", "d"), ("loss", "loss", ".4f"), ("minus BF16", "gap", "+.4f"),
        ("saved masters", "saved", ".4f"), ("distance", "distances", ".4f"), ("masters as with BF16", "same", ""),
    ),
    measure,
)  # fmt: skip
