"""Error-bounded vectors in the all-to-all of a recommendation model (DLRM), and the bound itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks import job
from benchmarks.tables import Row, Table
from benchmarks.traffic import dlrm, paired
from tensorwire.codec import compress, decompress
from tensorwire.torch.traffic import Bounded, Float8
from tensorwire.torch.traffic.codecs.codec import Raw

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class Repeated:
    """Lossless: each vector once, and the number of each row, entropy-coded as `Bounded` has it."""

    row: int
    lossless = True

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor | None:
        rows, places = np.unique(tensor.numpy().view(f"V{4 * self.row}"), return_inverse=True)
        frame = compress(places.astype(np.min_scalar_type(len(rows))), profile="compact")
        head = np.array([len(frame)]).view(np.uint8)
        return torch.from_numpy(np.concatenate([head, np.frombuffer(frame, np.uint8), rows.view(np.uint8)]))

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        content = message.numpy()
        end = 8 + int(content[:8].view(np.int64)[0])
        rows = content[end:].copy().view(np.float32).reshape(-1, self.row)
        out.copy_(torch.from_numpy(rows[decompress(content[8:end].data)].reshape(-1)))


FINE, COARSE, ENTROPY, REPEATED = "bound 0.03", "bound 0.3", "bound 0.03, entropy coding alone", "repeated rows alone"
CODECS: dict[str, Any] = {
    "raw messages": Raw(),
    REPEATED: Repeated(dlrm.DIM),
    ENTROPY: Bounded(0.03, relative=True),
    FINE: Bounded(0.03, relative=True, row=dlrm.DIM),
    "FP8": Float8("e4m3", dlrm.DIM),
    COARSE: Bounded(0.3, relative=True, row=dlrm.DIM),
}
ONCE = (REPEATED, ENTROPY, "FP8", COARSE)  # their figures need no mean
FULL = {"seeds": [0, 1, 2, 3, 4], "steps": 250}
QUICK = {"seeds": [0], "steps": 2}
ELEMENTS, MESSAGE, BOUNDS = 10**8, 1 << 18, (0.03, 1e-4)


def measure(quick: bool) -> list[Row]:
    rows = paired.measured(_run, list(CODECS), QUICK if quick else FULL, once=ONCE, of="auc")
    elements = (ELEMENTS // 100 if quick else ELEMENTS) // len(DRAWN) // len(BOUNDS)
    return rows + [_violations(name, bound, elements) for name in DRAWN for bound in BOUNDS]


def _run(settings: dict[str, Any]) -> Row:
    found = dlrm.train(CODECS[settings["name"]], settings["steps"], settings["seed"])
    return {"auc": found.auc, "times": found.raw_nbytes / found.sent_nbytes}


def _normal(generator: Generator) -> Tensor:
    return torch.randn(MESSAGE, generator=generator)


DRAWN = {
    "normal": _normal,
    "heavy tails": lambda generator: _normal(generator) / torch.rand(MESSAGE, generator=generator),
    "few values": lambda generator: (10 * _normal(generator)).round(),
    "far from 0": lambda generator: 1000 + _normal(generator),
    "near the smallest": lambda generator: 1e-36 * _normal(generator),
}


def _violations(name: str, bound: float, elements: int) -> Row:
    """Elements that are wrong by more than the bound allows, e (1 + 2^-20), and messages that had to be lossless."""
    codec, messages, wrong, lossless = Bounded(bound, relative=True), -(-elements // MESSAGE), 0, 0
    generator, out = torch.Generator().manual_seed(0), torch.empty(MESSAGE)
    for _ in range(messages):
        values = DRAWN[name](generator)
        message = codec.encode(values)
        if message is None:
            lossless += 1
            continue
        codec.decode(message, out)
        allowed = bound * float(values.max() - values.min()) * (1 + 2**-20)
        wrong += int((out.double().sub_(values).abs_() > allowed).sum())
    found = {"elements": messages * MESSAGE, "violations": wrong, "lossless": lossless}
    return {"run": f"bound {bound:g}, drawn: {name}"} | found


TABLE = Table(
    "recommendation",
    "Error-bounded vectors of a recommendation model",
    f"Synthetic clicks with a planted signal; tables of 30 to 100,000 rows on {job.RANKS} ranks, {FULL['steps']} steps."
    " The area under the ROC curve is that of the model as it is saved, looked up without a codec. Bytes are those of "
    "the vectors, against FP32. `Bounded` sends repeated rows once where it knows how long a row is. Repeated rows "
    "alone are lossless: the vectors stay FP32. The last rows check the bound on numbers that are drawn.",
    (
        ("codec", "run", ""), ("seed", "seed", "d"), ("area", "auc", ".4f"), ("minus raw", "gap", "+.4f"),
        ("times fewer bytes", "times", ".2f"), ("elements", "elements", ",d"), ("beyond the bound", "violations", "d"),
        ("lossless messages", "lossless", "d"),
    ),
    measure,
)  # fmt: skip
