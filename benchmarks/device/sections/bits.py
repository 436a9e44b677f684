"""Frames of all dtypes against the core, damaged ones, and products against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

import tensorwire
from benchmarks.device.measure import PROFILES, compressed
from benchmarks.device.runner import Row, Section

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench

_DAMAGED = 5
_INPUTS = (1, 3, 8, 13, 20, 64, 100)
_F8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def tensors() -> dict[str, torch.Tensor]:
    """20 of them, on the CPU: sizes that end anywhere, words that escape, and every dtype."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 0.02) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    def odd(weight: torch.Tensor, part: float) -> torch.Tensor:
        words = weight.view(torch.int16)
        chosen = torch.rand(words.shape, generator=generator) < part
        drawn = torch.randint(-(1 << 15), 1 << 15, words.shape, generator=generator, dtype=torch.int16)
        return torch.where(chosen, drawn, words).view(weight.dtype)

    sizes = [(1,), (255,), (256,), (1000, 7), (129, 256), (1500, 1024), (33, 4096), (300_001,)]
    found = {f"BF16 {size}": normal(*size) for size in sizes}
    found |= {f"BF16, {part:.1%} odd": odd(normal(100, 1024), part) for part in (0.015, 0.5, 1.0)}
    found["zeros"] = normal(5000, scale=0.0)
    found["equal"] = normal(70_000, scale=0.0) + 0.3
    infinite = found["infinite"] = normal(40_000)
    infinite[::97] = torch.inf
    found["F16"] = normal(100, 500, dtype=torch.float16)
    found["F16, odd"] = odd(normal(100, 300, dtype=torch.float16), 0.1)
    found["F32"] = normal(100, 300, dtype=torch.float32)
    found["F32, large"] = normal(50_000, dtype=torch.float32, scale=1e30)
    return found | {str(dtype).removeprefix("torch."): normal(100, 700, scale=0.3).to(dtype) for dtype in _F8}


def run(bench: Bench) -> Generator[Row, None, None]:
    every, names = tensors(), list(bench.engines())
    if bench.quick:  # few kernels, since each has to be compiled
        every = {name: every[name] for name in [*list(every)[:4], "infinite"]}
    yield from _same(bench, every, names[0])
    for profile in PROFILES:
        refused = sum(_is_refused(bench, every["infinite"], profile, number) for number in range(_DAMAGED))
        yield {"what": f"`{profile}`, damaged: refused, or wrong", "frames": _DAMAGED, "refused": refused}
    for profile in PROFILES:
        counts = [count for count in _INPUTS if _multiplies(bench, profile, count)]
        yield {"what": f"`{profile}`, products fused", "frames": len(_INPUTS), "right": len(counts)}
    for name in names[1:]:
        yield from _same(bench, every, name)


def frame_on(bench: Bench, tensor: torch.Tensor, profile: Any) -> torch.Tensor:
    """The tensor's frame, on the device."""
    data = bytearray(tensorwire.compress(tensor, profile=profile))
    return torch.frombuffer(data, dtype=torch.uint8).clone().to(bench.device)


def _same(bench: Bench, every: dict[str, torch.Tensor], name: str) -> Generator[Row, None, None]:
    """What the kernels of that name decode."""
    opened = bench.engines()[name]
    for profile in PROFILES:
        wrong = []
        for what, tensor in every.items():
            found = bench.decoder(opened(frame_on(bench, tensor, profile)))().cpu()
            if found.dtype != tensor.dtype or not torch.equal(found.view(torch.uint8), tensor.view(torch.uint8)):
                wrong.append(what)
        right = len(every) - len(wrong)
        yield {"what": f"`{profile}`, {name}", "frames": len(every), "right": right, "wrong": ", ".join(wrong)}


def _is_refused(bench: Bench, tensor: torch.Tensor, profile: Any, number: int) -> bool:
    """Whether a frame with some wrong bytes is refused. Otherwise its words are wrong, and nothing else happens."""
    frame = frame_on(bench, tensor, profile)
    generator = torch.Generator().manual_seed(number)
    places = torch.randint(len(frame) // 8, len(frame) - 64, (1 + number,), generator=generator).to(bench.device)
    frame[places] ^= 0x5A
    opened = next(iter(bench.engines().values()))
    try:
        bench.decoder(opened(frame))()
    except (tensorwire.FormatError, tensorwire.UnsupportedTensorError):
        return True
    finally:
        bench.settle()
    return False


def _multiplies(bench: Bench, profile: Any, count: int) -> bool:
    (weight,) = bench.weights(96, 1024, 1)
    (held,) = compressed([weight], profile, "fused")
    generator = torch.Generator(bench.device).manual_seed(count)
    x = torch.randn(count, 1024, generator=generator, device=bench.device).to(torch.bfloat16)
    found = linear(x, held)
    exactly = x.double() @ weight.double().T
    return bool((found - exactly).abs().max() <= 2 * (linear(x, weight) - exactly).abs().max())


SECTION = Section(
    "bits",
    35,
    "Are the bits those of the core?",
    "Frames of every dtype, in each profile, by the kernels of each language. A damaged frame is refused, or gives "
    "wrong words and leaves the device as it was. A fused product is at most twice as far from float64 as torch's.",
    (
        ("what", "what", ""), ("frames", "frames", "d"), ("right", "right", "d"), ("refused", "refused", "d"),
        ("wrong", "wrong", ""),
    ),
    run,
)  # fmt: skip
