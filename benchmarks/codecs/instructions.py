"""SASS instructions a word of the Triton kernels: python -m benchmarks.codecs.instructions.

The kernels are compiled for sm_90, which needs no GPU. nvdisasm, which Triton's wheel brings, lists their instructions.
They are counted as often as a real frame makes the programs of a launch execute them: those in a loop each time the
loop is taken, and for the words that only fill a tile up as well. All launches of a decoding are added up.

These kernels are for other devices, which have instructions of their own: the counts compare profiles and versions.

`slope` is the difference between a tile and one of twice as many words, for each word more: what a program does once
drops out. `all` is everything, with the tiles that are used.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton.backends.compiler import GPUTarget

import tensorwire
from tensorwire.torch.device.plan import RUN, CascadeLaunch, EnecLaunch, counts_of, leading, plan
from tensorwire.torch.device.triton import decode, kernels
from tests.torch.compile_kernels import BF16, compile_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = GPUTarget("cuda", 90, 32)
THREADS = 32
ROWS, COLUMNS = 1024, 4096
PROFILES = ("fast", "enec", "resident")
_LINE = re.compile(r"^(\.L_x_\d+):|^\s+/\*[0-9a-f]{4,}\*/\s+([^;]*);", re.MULTILINE)
_BRANCH = re.compile(r"\bBRA\b.*?(\.L_x_\d+)")


def listing(kernel: Any, constants: dict[str, int]) -> tuple[int, list[int]]:
    """Instructions of a kernel outside its loops, and in each loop, in order. The loop that stops what ran past the end
    does not count."""
    compiled = compile_kernel(kernel, constants, TARGET)
    nvdisasm = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=True).stdout
    labels: dict[str, int] = {}
    loops, total = [], 0
    for label, instruction in _LINE.findall(text):
        if label:
            labels[label] = total
            continue
        branch = _BRANCH.search(instruction)
        padding = instruction.strip().startswith("NOP")
        total += not padding
        if branch and branch.group(1) in labels and labels[branch.group(1)] < total - 1:
            loops.append(total - labels[branch.group(1)])
    return total - sum(loops), loops


def both(
    kernel: Any, constants: dict[str, int], size: str, tile: int, executed: Callable[[int, list[int]], float]
) -> tuple[float, float]:
    """Instructions that a thread executes in a tile, and those that one of twice the size adds; by `executed`."""
    small, large = (executed(*listing(kernel, {**constants, size: tile * factor})) for factor in (1, 2))
    return small, large - small


def later_launches(launch: Any, rows: Any) -> tuple[float, float]:
    """Instructions a word, slope and all, of the launches that come before that of words: tiers, or high parts."""
    if isinstance(launch, EnecLaunch):
        high = {"rest_bits": 8, "m": launch.m, "high_bits": launch.nb - launch.m, "quads_log2": launch.quads_log2}
        high["lead"] = leading(high["high_bits"])
        launches = [(kernels.high_kernel, high, rows[:, 4].tolist())]
    else:
        last = len(launch.widths)
        shared = {"rest_bits": 8, "widths": launch.packed_widths, "last": last}
        launches = [
            (
                kernels.resolve_kernel,
                {**shared, "tier": tier, "lead": leading(launch.widths[tier - 1])},
                counts_of(rows)[:, tier - 2].tolist(),
            )
            for tier in range(2, last + 1)
        ]
    words, tile = int(rows[:, 2].sum()), decode._LATER_RUNS
    slope = everything = 0.0
    for kernel, constants, counts in launches:
        trips = sum(-(-count // (tile * RUN)) for count in counts)
        outside = listing(kernel, {**constants, "runs": tile})[0]
        body, more = both(kernel, constants, "runs", tile, lambda _, loops: loops[0])
        slope += more * THREADS * trips / words
        everything += (body * trips + outside * len(counts)) * THREADS / words
    return slope, everything


def decoding(launch: Any, rows: Any) -> tuple[float, float]:
    """The same of the launch that makes words."""
    words, tile = int(rows[:, 2].sum()), decode._RUNS_OF_WORDS
    constants = {**BF16, "whole": 1}
    if isinstance(launch, EnecLaunch):
        constants |= {"quads_log2": launch.quads_log2, "m": launch.m, "nb": launch.nb, "lead": leading(launch.m)}
        kernel = kernels.enec_words_kernel
    else:
        constants |= {"widths": launch.packed_widths, "last": len(launch.widths), "lead": leading(launch.widths[0])}
        kernel = kernels.cascade_words_kernel
    once, more = both(kernel, constants, "runs", tile, lambda outside, loops: outside + sum(loops))
    programs = sum(-(-n // (tile * RUN)) for n in rows[:, 2].tolist())
    return more * THREADS / (tile * RUN), once * THREADS * programs / words


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(ROWS, COLUMNS, generator=generator) * 0.02).to(torch.bfloat16)
    print(f"Triton {triton.__version__}, sm_90; BF16, normal, {ROWS} x {COLUMNS}; instructions a word")
    print("profile   coding      slope    all")
    for profile in PROFILES:
        frame = torch.frombuffer(bytearray(tensorwire.compress(weight, profile=profile)), dtype=torch.uint8)
        launches = plan(frame).rows.items()
        launch, rows = max(
            (item for item in launches if isinstance(item[0], CascadeLaunch | EnecLaunch)),
            key=lambda item: len(item[1]),
        )
        coding = "x".join(map(str, launch.widths)) if isinstance(launch, CascadeLaunch) else f"L {4 << launch[2]}"
        counted = decoding(launch, rows), later_launches(launch, rows)
        slope, everything = (sum(pair) for pair in zip(*counted, strict=True))
        print(f"{profile:9} {coding:10} {slope:6.1f} {everything:6.1f}", flush=True)


if __name__ == "__main__":
    main()
