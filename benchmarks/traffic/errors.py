"""What codecs do to real gradients and activations: bits and errors, with their contrasts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import gpt
from benchmarks.environment import log
from benchmarks.tables import Row, Table
from benchmarks.traffic.masters import ROWS, Training
from tensorwire.codec import compress
from tensorwire.torch.traffic import Float8, Grid

if TYPE_CHECKING:
    from torch import Tensor

STEP, PEAK = 100, 3e-4
GRADIENTS = Grid(4, 128, rounding="stochastic")
E4M3 = Float8("e4m3", 128)


@dataclass(frozen=True)
class Scaled:
    """TACO's first scale: it takes each group to one root mean square before the codec scales it again."""

    codec: Float8
    lossless = False

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor:
        groups = self._groups(tensor)
        scales = (448 / (groups.square().mean(1, keepdim=True) + 1e-6).sqrt()).clamp(1e-3, 1e3)
        message = self.codec.encode((groups * scales).view(-1), None, key)
        return torch.cat([scales.view(-1).view(torch.uint8), message])

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        restored = torch.empty_like(self._groups(out))
        scales = message[: 4 * len(restored)].clone().view(torch.float32)
        self.codec.decode(message[4 * len(restored) :], restored.view(-1))
        out.copy_((restored / scales[:, None]).view(-1)[: out.numel()])

    def _groups(self, tensor: Tensor) -> Tensor:
        flat = tensor.reshape(-1).float()
        return torch.nn.functional.pad(flat, (0, -flat.numel() % self.codec.group)).view(-1, self.codec.group)


HADAMARD, TACO = "E4M3, Hadamard 128", "E4M3, Hadamard 128, TACO's first scale"
ACTIVATIONS: dict[str, Any] = {
    "E4M3": E4M3,
    HADAMARD: replace(E4M3, hadamard=128),
    TACO: Scaled(replace(E4M3, hadamard=128)),
    "E5M2": Float8("e5m2", 128),
    "int8": Grid(8, 128),
    "int8, Hadamard 32": Grid(8, 128, hadamard=32),
    "int4": Grid(4, 128),
    "int4, Hadamard 32": Grid(4, 128, hadamard=32),
}


def measure(quick: bool) -> list[Row]:
    training = Training()
    steps = 3 if quick else STEP
    log(f"{steps} steps of training")
    for step in range(1, steps + 1):
        training.step(step, gpt.rate_at(step, PEAK))
    gradients = {name: each for name, each in training.gradients.items() if each.dim() == 2}
    layers = {name: each for name, each in gradients.items() if name.startswith("layers.")}
    outer = {name: each for name, each in gradients.items() if name not in layers}
    activations = _activations(training, steps + 1)
    rows = [
        *_gradients("gradients of layers", layers),
        *_gradients("gradients of embedding and head", outer),
        *(_row("activations", name, codec, activations) for name, codec in ACTIVATIONS.items()),
    ]
    rows += [
        _frames("gradients of layers, FP32", _full_gradients(training, steps + 1), torch.float32),
        _frames("gradients of layers, BF16 cast to FP32", layers, torch.float32),
        _frames("gradients of layers, BF16", layers, torch.bfloat16),
        _frames("gradients of embedding and head, BF16", outer, torch.bfloat16),
    ]
    rows.append(_frames("activations, BF16", activations, torch.bfloat16))
    random = {"one": torch.randint(-(1 << 15), 1 << 15, (1 << 20,), dtype=torch.int16).view(torch.bfloat16)}
    return [*rows, _frames("random bits, BF16", random, torch.bfloat16)]


def _gradients(what: str, tensors: dict[str, Tensor]) -> list[Row]:
    plain = _row(what, "int4, stochastic", GRADIENTS, tensors)
    mixed = _row(what, "int4, stochastic, Hadamard 32", replace(GRADIENTS, hadamard=32), tensors)
    parts = [with_it / without for with_it, without in zip(mixed["all"], plain["all"], strict=True)]
    nearest = _row(what, "int4, nearest", replace(GRADIENTS, rounding="nearest"), tensors)
    return [plain, mixed | {"of the one without": [min(parts), mean(parts), max(parts)]}, nearest]


def _row(what: str, name: str, codec: Any, tensors: dict[str, Tensor]) -> Row:
    errors = [_error(codec, each) for each in tensors.values()]
    words = sum(each.numel() for each in tensors.values())
    bits = 8 * sum(codec.encode(each.reshape(-1).float()).numel() for each in tensors.values()) / words
    return {"tensors": what, "codec": name, "bits": bits, "errors": [min(errors), max(errors)], "all": errors}


def _error(codec: Any, tensor: Tensor) -> float:
    """Relative L2 error."""
    flat = tensor.reshape(-1).float()
    restored = torch.empty_like(flat)
    codec.decode(codec.encode(flat), restored)
    return float((restored - flat).norm() / flat.norm())


def _frames(what: str, tensors: dict[str, Tensor], dtype: torch.dtype) -> Row:
    """The size of lossless frames."""
    found = [each.to(dtype).contiguous() for each in tensors.values()]
    raw, sent = sum(each.nbytes for each in found), sum(len(compress(each)) for each in found)
    bits = 8 * sent / sum(each.numel() for each in found)
    return {"tensors": what, "codec": "frame, `fast`", "bits": bits, "times": raw / sent}


def _full_gradients(training: Training, step: int) -> dict[str, Tensor]:
    """Gradients of the matrices of layers, by a forward and a backward in FP32."""
    training.model.zero_grad()
    training.model(gpt.batch(step, ROWS)).backward()
    found = {name: each.grad for name, each in training.model.named_parameters() if name.startswith("layers.")}
    return {name: each for name, each in found.items() if each is not None and each.dim() == 2}


def _activations(training: Training, step: int) -> dict[str, Tensor]:
    """What the attention, the MLP and each layer give in BF16."""
    found: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: found.__setitem__(name, output.detach()))
        for name, module in training.model.named_modules()
        if name.endswith((".output", ".down", ".up", ".query", ".key", ".value")) or name.count(".") == 1
    ]
    with torch.no_grad():
        torch.func.functional_call(training.model, training.copies(), (gpt.batch(step, ROWS),))
    for hook in hooks:
        hook.remove()
    return found


TABLE = Table(
    "errors",
    "Errors and bits of codecs on real tensors",
    f"Gradients and activations of step {STEP} of the model of the first table, at a rate of {PEAK:g}. Errors are "
    "relative L2 errors, those of the best and of the worst tensor; groups have 128 elements. Behind Hadamard: the "
    "error as a part of the one without it, least, mean and most. TACO scales a group before the transform as "
    "well; `Float8` does not. FSDP2 casts the gradients of a backward in BF16 to FP32, if it is to reduce in FP32.",
    (
        ("tensors", "tensors", ""), ("codec", "codec", ""), ("bits", "bits", ".2f"), ("errors", "errors", ".5f"),
        ("of the one without Hadamard", "of the one without", ".3f"), ("times fewer bytes", "times", ".3f"),
    ),
    measure,
)  # fmt: skip
