"""SASS instructions a word of the Triton kernels: python -m benchmarks.codecs.instructions.

The kernels are compiled for sm_90, which needs no GPU. nvdisasm, which Triton's wheel brings, lists their instructions.
They are counted as often as a real frame makes the programs of a launch execute them: those in a loop each time the
loop is taken, and for the words that only fill a tile up as well. All launches of a decoding are added up.

Bytes are permuted by NVIDIA's instruction `prmt`, and in a second run by `shifts` and masks, as on other devices. Since
these have instructions of their own, the second run says how much longer the portable form is here, not how long it is
there.

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
from tensorwire.torch.device import decode, kernels, linear, products
from tensorwire.torch.device.fields import PRMT, SHIFTS
from tensorwire.torch.device.plan import RUN, CascadeLaunch, EnecLaunch, counts_of, leading, plan
from tests.torch.compile_kernels import BF16, compile_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = GPUTarget("cuda", 90, 32)
THREADS = 32
ROWS, COLUMNS = 1024, 4096
CHUNKS = linear._MOST_CHUNKS
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


def later_launches(launch: Any, rows: list[list[int]], permutation: int) -> tuple[float, float]:
    """Instructions a word, slope and all, of the launches that come before that of words: tiers, or high parts."""
    if isinstance(launch, EnecLaunch):
        high = {"rest_bits": 8, "m": launch.m, "high_bits": launch.nb - launch.m, "quads_log2": launch.quads_log2}
        high["lead"] = leading(high["high_bits"])
        launches = [(kernels.high_kernel, high, [row[4] for row in rows])]
    else:
        last = len(launch.widths)
        shared = {"rest_bits": 8, "widths": launch.packed_widths, "last": last, "permutation": permutation}
        launches = [
            (
                kernels.resolve_kernel,
                {**shared, "tier": tier, "lead": leading(launch.widths[tier - 1])},
                [counts_of(row)[tier - 2] for row in rows],
            )
            for tier in range(2, last + 1)
        ]
    words, tile = sum(row[2] for row in rows), decode._LATER_RUNS
    slope = everything = 0.0
    for kernel, constants, counts in launches:
        trips = sum(-(-count // (tile * RUN)) for count in counts)
        outside = listing(kernel, {**constants, "runs": tile})[0]
        body, more = both(kernel, constants, "runs", tile, lambda _, loops: loops[0])
        slope += more * THREADS * trips / words
        everything += (body * trips + outside * len(counts)) * THREADS / words
    return slope, everything


def decoding(launch: Any, rows: list[list[int]], permutation: int) -> tuple[float, float]:
    """The same of the launch that makes words."""
    words, tile = sum(row[2] for row in rows), decode._RUNS_OF_WORDS
    constants = {**BF16, "whole": 1, "permutation": permutation}
    if isinstance(launch, EnecLaunch):
        constants |= {"quads_log2": launch.quads_log2, "m": launch.m, "nb": launch.nb, "lead": leading(launch.m)}
        kernel = kernels.enec_words_kernel
    else:
        constants |= {"widths": launch.packed_widths, "last": len(launch.widths), "lead": leading(launch.widths[0])}
        kernel = kernels.cascade_words_kernel
    once, more = both(kernel, constants, "runs", tile, lambda outside, loops: outside + sum(loops))
    programs = sum(-(-row[2] // (tile * RUN)) for row in rows)
    return more * THREADS / (tile * RUN), once * THREADS * programs / words


def product(launch: Any, rows: list[list[int]], weight: torch.Tensor, permutation: int) -> tuple[float, float]:
    """The same of the launch that multiplies by one input. Escapes of tier shape (4) have a loop of their own."""
    constants = {"inputs": 1, "chunks": CHUNKS, "permutation": permutation}
    escapes = 0.0
    if isinstance(launch, EnecLaunch):
        kernel = products.enec_kernel
        constants |= {"quads_log2": launch.quads_log2, "m": launch.m, "nb": launch.nb, "lead": leading(launch.m)}
    else:
        kernel = products.cascade_kernel
        constants |= {"widths": launch.packed_widths, "lead": leading(launch.widths[0])}
        if launch.widths == (4,):
            kernel, escapes = products.listed_kernel, most_escapes(rows, weight)
        else:
            constants["last"] = len(launch.widths)
    tile, trips = linear._ROWS, COLUMNS // RUN // CHUNKS
    once, more = both(kernel, constants, "rows", tile, lambda outside, loops: outside + loops[0] * trips)
    if escapes:
        listed = listing(kernel, {**constants, "rows": tile})[1][1] * escapes
        once, more = once + listed, more + listed
    return more * THREADS / (tile * COLUMNS), once * THREADS / (tile * COLUMNS)


def most_escapes(rows: list[list[int]], weight: torch.Tensor) -> float:
    """How often the loop over escapes, eight of each row at a time, is taken: the mean over tiles."""
    exponents = (weight.view(torch.int16) >> 7) & 0xFF
    lo = torch.tensor([row[3] & 0xFF for row in rows]).repeat_interleave(len(weight) // len(rows))[:, None]
    escaped = ((exponents < lo) | (exponents >= lo + 15)).sum(1)
    return float(((escaped.view(-1, linear._ROWS).amax(1) + 7) // 8).double().mean())


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(ROWS, COLUMNS, generator=generator) * 0.02).to(torch.bfloat16)
    print(f"Triton {triton.__version__}, sm_90; BF16, normal, {ROWS} x {COLUMNS}; instructions a word")
    print("profile   what     coding     bytes by   slope    all")
    for profile in PROFILES:
        frame = torch.frombuffer(bytearray(tensorwire.compress(weight, profile=profile)), dtype=torch.uint8)
        launches = plan(frame).rows.items()
        launch, rows = max(
            (item for item in launches if isinstance(item[0], CascadeLaunch | EnecLaunch)),
            key=lambda item: len(item[1]),
        )
        coding = "x".join(map(str, launch.widths)) if isinstance(launch, CascadeLaunch) else f"L {4 << launch[2]}"
        for by, permutation in (("prmt", PRMT.value), ("shifts", SHIFTS.value)):
            later = later_launches(launch, rows, permutation)
            for what, counted in (
                ("decode", decoding(launch, rows, permutation)),
                ("product", product(launch, rows, weight, permutation)),
            ):
                slope, everything = (sum(pair) for pair in zip(counted, later, strict=True))
                print(f"{profile:9} {what:8} {coding:10} {by:8} {slope:7.1f} {everything:6.1f}", flush=True)


if __name__ == "__main__":
    main()
