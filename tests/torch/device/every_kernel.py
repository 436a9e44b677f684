"""The kernels that frames ask for, compiled by NVRTC: python -m tests.torch.device.every_kernel 80 90 100

It needs no GPU. The exit code is 77 if NVRTC is missing.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import torch

import tensorwire
from reference.tensorwire_reference import Enec, Verbatim, encode
from tensorwire.torch.device.binaries import sources
from tensorwire.torch.device.frame import DeviceFrame
from tensorwire.torch.device.nvrtc import compiler
from tests.support.cases import floats
from tests.support.registry import FLOATS

from .opened import CASCADES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensorwire.torch.device.driver import Kernel

CODINGS = [*CASCADES, *(Enec(group=4 << k) for k in range(4))]


class Asked:
    """A driver that compiles and launches nothing, and notes what it is asked for."""

    num_processors, shared_nbytes, cache_nbytes, architecture = 132, 227 << 10, 50 << 20, 90

    def __init__(self) -> None:
        self.kernels: dict[Kernel, None] = {}

    def stream(self) -> int:
        return 0

    def function(self, kernel: Kernel, shared_nbytes: int = 0) -> Asked:
        self.kernels[kernel] = None
        return self

    def launch(self, *arguments: Any) -> None:
        pass


def usual_frames() -> Iterator[bytes]:
    """What the core makes of weights, in all profiles for devices."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for profile in ("fast", "resident", "enec"):
            weight = torch.randn(300, 257, generator=torch.Generator().manual_seed(1)) * 0.02
            yield bytes(tensorwire.compress(weight.to(dtype), profile=profile))


def all_frames() -> Iterator[bytes]:
    """Every tier shape and group size, each dtype in turn; blocks that are whole, and one that is not."""
    yield from usual_frames()
    for number, coding in enumerate(CODINGS):
        dtype = list(FLOATS)[number % len(FLOATS)]
        data = floats(dtype, 2 * 512 + 300, f"every {number}")
        shape = (2 * 512 + 300,)
        yield encode(data, dtype, shape, kind=coding, rest=Verbatim(), profile="fast", block_words=512)
    for dtype in ("U8", "I64"):
        yield bytes(tensorwire.compress(bytes(range(256)) * 8 + bytes(2048), dtype=dtype))


def kernels_of(frames: Iterator[bytes]) -> list[Kernel]:
    """What is launched to open frames, to decode them and to take rows."""
    driver = Asked()
    for each in frames:
        frame = DeviceFrame(torch.frombuffer(bytearray(each), dtype=torch.uint8), driver=driver)
        assert frame.rows is not None
        frame.rows(torch.tensor([0]), torch.empty(1))
    return list(driver.kernels)


def compile_all(kernels: Sequence[Kernel], architectures: Sequence[int]) -> Iterator[tuple[Kernel, int, int, float]]:
    """Compile each; gives it with the architecture, the bytes of its machine code and the seconds it took.

    Raises:
        OSError: NVRTC is missing.
        CompileError: one does not compile.
    """
    nvrtc = compiler(torch.version.cuda)
    for architecture in architectures:
        for kernel in kernels:
            began = time.perf_counter()
            code, _ = nvrtc.compile(kernel, architecture, sources())
            assert code[:4] == b"\x7fELF"
            yield kernel, architecture, len(code), time.perf_counter() - began


def main() -> None:
    try:
        compiler(torch.version.cuda)
    except OSError as error:
        print(error)
        sys.exit(77)
    for kernel, architecture, nbytes, seconds in compile_all(kernels_of(all_frames()), list(map(int, sys.argv[1:]))):
        print(f"sm_{architecture} {seconds:5.1f} s {nbytes:7d} bytes  {kernel.expression}", flush=True)


if __name__ == "__main__":
    main()
