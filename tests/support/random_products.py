"""Products of random shapes and values in mode *exact*, compared with dense torch's, word by word.

``python -m tests.support.random_products SEED COUNT`` prints those that differ and ends with exit code 1 if any does.
It is a program of its own since torch, oneDNN and MKL read what a CPU can from the environment, once a process.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch

from tensorwire.torch import CompressedTensor
from tensorwire.torch.frames.team import on_team

multiply = torch.nn.functional.linear
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
WORDS = {2: torch.int16, 4: torch.int32}
VARIANTS: dict[str, dict[str, str]] = {
    "as it is": {},
    "torch for AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "all for AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "TENSORWIRE_CPU": "avx2",
    },
    "torch without vectors": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "without the instruction for pairs": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "ours for AVX2": {"TENSORWIRE_CPU": "avx2"},
}
"""Environments of processes, as on other CPUs."""


def differences(x: Any, weight: Any, bias: Any, compressed: Any = None) -> int:
    """Words of the product with the compressed weight that are not those of the product with the dense one."""
    expected = multiply(x, weight, bias).contiguous()
    got = multiply(x, CompressedTensor.from_dense(weight) if compressed is None else compressed, bias).contiguous()
    words = WORDS[expected.element_size()]
    return int((got.view(words) != expected.view(words)).sum())


@dataclass
class Case:
    """A product, and the state of threads in which it is made."""

    weight: Any
    x: Any
    bias: Any
    threads: int
    profile: str
    caller_flushes: bool
    workers_flush: bool
    what: str

    def differences(self) -> int:
        """Words of the result that are not dense torch's."""
        compressed = CompressedTensor.from_dense(self.weight, self.profile)
        torch.set_num_threads(self.threads)
        try:
            on_team(lambda: torch.set_flush_denormal(self.workers_flush), self.threads)
            torch.set_flush_denormal(self.caller_flushes)
            return differences(self.x, self.weight, self.bias, compressed)
        finally:
            on_team(lambda: torch.set_flush_denormal(False), self.threads)


class Draw:
    """Cases from a seed."""

    def __init__(self, seed: int) -> None:
        self._draw, self._generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def case(self) -> Case:
        draw = self._draw
        name, dtype = draw.choice([*DTYPES.items()])
        rows, columns = self._shape()
        count = draw.choice([1, 1, 2, 3, 4, 8, draw.randrange(1, 71)])
        kind = draw.choice(["normal", "normal", "pairs", "sizes", "denormal", "tiny", "huge", "zeros", "specials"])
        weight, x = self._values(kind, rows, columns, dtype), self._values(kind, count, columns, dtype)
        if kind == "pairs":  # what rounding leaves
            half = columns // 2
            weight[:, half : 2 * half], x[:, half : 2 * half] = -weight[:, :half], x[:, :half]
        sign = draw.choice([None, None, None, 1, -1])
        if sign is not None:  # all terms have one sign
            weight, x = weight.abs() * sign, x.abs()
        bias = None
        if draw.random() < 0.5:
            likes = [weight[:, 0], weight.sum(1), torch.zeros(rows), -torch.zeros(rows), x.sum() * weight[:, 0]]
            bias = draw.choice(likes).to(dtype).contiguous()
        x, layout = self._laid_out(x)
        threads = draw.choice([1, 2, 2, 3])
        caller, workers = draw.choice([(False, False)] * 4 + [(False, True), (True, False), (True, True)])
        what = (
            f"{name} ({rows}, {columns}), {count} {kind} inputs {layout}, sign {sign}, bias {bias is not None}, "
            f"{threads} threads, flush: caller {caller}, workers {workers}"
        )
        return Case(weight, x, bias, threads, draw.choice(["fast", "resident"]), caller, workers, what)

    def _shape(self) -> tuple[int, int]:
        """Many around whole slabs, whose leftover has a few rows or one."""
        draw = self._draw
        size = draw.choice(["small", "middle", "slabs"] * 9 + ["large"])
        if size == "small":
            return draw.randrange(1, 80), draw.randrange(1, 300)
        if size == "middle":
            return draw.randrange(64, 700), draw.choice([draw.randrange(1, 700), 16 * draw.randrange(1, 64)])
        if size == "slabs":
            return 64 * draw.randrange(1, 9) + draw.choice([-1, 0, 1, 1, 2, 3, 9]), draw.randrange(1, 400)
        return draw.choice([1024, 1025, 1026, 1279, 2049]), draw.choice([1024, 2047, 4096])

    def _values(self, kind: str, count: int, columns: int, dtype: Any) -> Any:
        normal = torch.randn(count, columns, generator=self._generator)
        if kind == "sizes":
            normal *= 2.0 ** torch.randint(-30, 31, normal.shape, generator=self._generator)
        if kind == "zeros":
            normal *= torch.randint(0, 2, normal.shape, generator=self._generator) == 0
        # BF16 and F32 keep some bits of the products of two such values, or none.
        small = 15 if dtype is torch.float16 else self._draw.choice([64, 68, 72, 74])
        if kind == "denormal":
            normal *= 2.0 ** (self._draw.choice([-small, -2 * small + 2, -4]))
        if kind == "tiny":
            normal *= 2.0 ** -(24 if dtype is torch.float16 else self._draw.choice([76, 90, 133]))
        if kind == "huge":
            normal *= 2.0 ** (12 if dtype is torch.float16 else self._draw.choice([60, 62, 64, 120]))
        if kind == "specials":
            one = self._draw.choice([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.4e-45, 2.0**-130, 6e-8])
            normal[self._draw.randrange(count), self._draw.randrange(columns)] = one
        return normal.to(dtype)

    def _laid_out(self, x: Any) -> tuple[Any, str]:
        layout, (count, columns) = self._draw.choice(["rows", "rows", "batch", "last", "shifted", "vector"]), x.shape
        if layout == "batch":
            return x[None], layout
        if layout == "last" and count <= 16:
            prompts = torch.zeros(count, 3, columns, dtype=x.dtype)
            prompts[:, -1] = x
            return prompts[:, -1:], layout
        if layout == "shifted":  # not where torch allocates
            memory = torch.zeros(x.numel() + 3, dtype=x.dtype)
            shifted = memory[self._draw.choice([1, 2, 3]) :][: x.numel()].view(x.shape)
            return shifted.copy_(x), layout
        if layout == "vector" and count == 1:
            return x[0], layout
        return x, "rows"


def main(seed: int, count: int) -> int:
    draw, wrong = Draw(seed), 0
    for number in range(count):
        case = draw.case()
        with torch.inference_mode(number % 2 == 0):
            different = case.differences()
        if different:
            wrong += 1
            print(f"{number}: {different} words differ: {case.what}", flush=True)
    print(f"seed {seed}: {wrong} of {count} products differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
