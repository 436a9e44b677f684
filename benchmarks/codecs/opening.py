"""Milliseconds of the host for a gigabyte of dense weights, to open frames: python -m benchmarks.codecs.opening.

The frames lie on the CPU, and the driver compiles and launches nothing: what is left is Python, which is the same for
frames on a GPU. That also has some copies to wait for, and the kernels that count. CPU time of one thread, medians.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import torch

import tensorwire
from tensorwire.torch.device.frame import DeviceFrame

if TYPE_CHECKING:
    from tensorwire.torch.device.driver import Kernel

ROUNDS = 15
LAYER = (*[(4096, 4096)] * 2, *[(1024, 4096)] * 2, *[(14336, 4096)] * 2, (4096, 14336))
SHAPES = {"a layer of 8 billion weights": LAYER, "one matrix": ((122_070, 4096),)}
PROFILES = ("fast", "resident", "enec")


class Nothing:
    """A driver and a kernel that do nothing."""

    num_processors, shared_nbytes, cache_nbytes, architecture = 132, 227 << 10, 50 << 20, 90

    def stream(self) -> int:
        return 0

    def function(self, kernel: Kernel, shared_nbytes: int = 0) -> Nothing:
        return self

    def launch(self, *arguments: object) -> None:
        pass


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    print("tensors                       profile   frames  blocks  ms a GB")
    for name, shapes in SHAPES.items():
        weights = [(torch.randn(shape, generator=generator) * 0.02).to(torch.bfloat16) for shape in shapes]
        dense_nbytes = sum(weight.nbytes for weight in weights)
        for profile in PROFILES:
            made = [tensorwire.compress(weight, profile=profile) for weight in weights]
            frames = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in made]
            blocks = sum(tensorwire.frame_info(each).num_blocks for each in made)
            taken = []
            for _ in range(ROUNDS):
                began = time.process_time()
                for frame in frames:
                    DeviceFrame(frame, driver=Nothing())
                taken.append(time.process_time() - began)
            milliseconds = statistics.median(taken) / dense_nbytes * 1e12
            print(f"{name:29} {profile:9} {len(frames):6d} {blocks:7d} {milliseconds:8.1f}", flush=True)


if __name__ == "__main__":
    main()
