"""What NVIDIA's tools say of a kernel's machine code, without a GPU: instructions, registers, stack, blocks at once."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tensorwire.torch.device.binaries import sources
from tensorwire.torch.device.nvrtc import Compiler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensorwire.torch.device.driver import Kernel

_LINE = re.compile(r"^(\.L_x_\d+):|^\s+/\*[0-9a-f]{4,}\*/\s+([^;]*);", re.MULTILINE)
_BRANCH = re.compile(r"\bBRA\b.*?(\.L_x_\d+)")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_REGISTERS, _THREADS, _BLOCKS = 1 << 16, 2048, 32  # of a processor
_SHARED_NBYTES = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}
_RESERVED_NBYTES = 1024  # of shared memory, in each block


@dataclass(frozen=True)
class Branch:
    """A branch: whether it is taken always, and where it leads, by numbers of instructions."""

    always: bool
    target: int


class Some(NamedTuple):
    """A loop that a part of the warps takes, each so often."""

    warps: float
    trips: float


@dataclass(frozen=True)
class Listing:
    """Instructions of a kernel by their numbers.

    Attributes:
        count: of them, but for those behind the last EXIT. What stands there is rare: the compiler puts there what
            threads do that have gone apart.
        branches: forward, by the number of the instruction.
        exits: that are taken by some warps, or none.
        loops: begin and end of each, in the order in which they begin.
    """

    count: int
    branches: dict[int, Branch]
    exits: tuple[int, ...]
    loops: tuple[tuple[int, int], ...]

    def executed(self, trips: Sequence[float | Some], going_on: Sequence[float] = ()) -> tuple[float, float]:
        """Instructions that a thread executes in loops, and outside, if each loop is taken so often whenever the code
        around it runs, and that part of the warps goes on behind each exit; all behind those that are not named.

        A branch forward is not taken, so that what it might skip counts: the result is a bound from above. But it is
        taken over loops that are taken 0 times. Where it might skip loops that some warps take, and no others, these
        warps alone execute all that it might skip.

        Raises:
            ValueError: there are more or fewer loops, or one is never reached that is to be taken.
        """
        if len(trips) != len(self.loops):
            sizes = ", ".join(str(end - begin) for begin, end in self.loops)
            raise ValueError(f"expected {len(trips)} loops, got {len(self.loops)}, of {sizes} instructions")
        walk = list(self._walk(trips, dict(zip(self.exits, going_on, strict=False))))
        reached = {place for _, place in walk}
        for (begin, _), each in zip(self.loops, trips, strict=True):
            if (each.trips if isinstance(each, Some) else each) and begin not in reached:
                raise ValueError(f"the loop at instruction {begin} is never reached: let it be taken 0 times")
        outside = sum(often for often, place in walk if not self._around(place))
        return sum(often for often, _ in walk) - outside, outside

    def _walk(self, trips: Sequence[float | Some], going_on: dict[int, float]) -> Iterator[tuple[float, int]]:
        """How often each instruction on the way is executed, and its number."""
        place, part = 0, 1.0
        regions: list[tuple[int, int, float]] = []  # that a branch might skip, and which part of the warps is inside
        times = [each.trips if isinstance(each, Some) else each for each in trips]
        parts = [each.warps if isinstance(each, Some) else 1.0 for each in trips]
        while place < self.count:
            inside = min((warps for begin, end, warps in regions if begin <= place < end), default=1.0)
            yield part * inside * math.prod(times[loop] for loop in self._around(place)), place
            part *= going_on.get(place, 1.0)
            branch = self.branches.get(place)
            place += 1
            if branch is None:
                continue
            over = [k for k, (begin, end) in enumerate(self.loops) if place <= begin and end <= branch.target]
            if branch.always or (over and not any(times[k] for k in over)):
                place = branch.target
            elif over:
                regions.append((place, branch.target, max(parts[k] for k in over)))

    def _around(self, place: int) -> list[int]:
        return [number for number, (begin, end) in enumerate(self.loops) if begin <= place < end]


@dataclass(frozen=True)
class Code:
    """A compiled kernel.

    Attributes:
        binary: what NVRTC makes of it.
        registers: of a thread.
        stack_nbytes: of a thread, in local memory: registers that are spilled, and arrays that are no registers.
        shared_nbytes: of a block, as far as the kernel itself says.
    """

    binary: bytes
    registers: int
    stack_nbytes: int
    shared_nbytes: int

    def at_once(self, threads: int, shared_nbytes: int, architecture: int) -> int:
        """Blocks that a processor has room for."""
        registers = -(-self.registers // 8) * 8 * threads
        shared = shared_nbytes + max(self.shared_nbytes, _RESERVED_NBYTES)
        return min(_REGISTERS // registers, _THREADS // threads, _SHARED_NBYTES[architecture] // shared, _BLOCKS)


class Tools:
    """NVIDIA's compiler and disassemblers, of their packages in one environment."""

    def __init__(self, environment: Path) -> None:
        """Raises OSError if they are not there."""
        found = sorted(environment.glob("lib/python3*/site-packages/nvidia/cu*"))
        if not found:
            raise OSError(f"{environment} has no packages of NVIDIA's: make device-test installs them")
        self._folder = found[-1]
        libraries = {name: sorted(self._folder.glob(f"lib/lib{name}.so.*"))[-1] for name in ("nvrtc-builtins", "nvrtc")}
        ctypes.CDLL(str(libraries["nvrtc-builtins"]), ctypes.RTLD_GLOBAL)
        self.compiler = Compiler(ctypes.CDLL(str(libraries["nvrtc"])))
        self._codes: dict[tuple[Kernel, int], Code] = {}

    def compiled(self, kernel: Kernel, architecture: int) -> Code:
        """A kernel of the package, compiled as it is when it is used; once, however often it is asked for."""
        if (kernel, architecture) not in self._codes:
            self._codes[kernel, architecture] = self._compile(kernel, architecture)
        return self._codes[kernel, architecture]

    def listing(self, code: Code) -> Listing:
        """Its instructions."""
        return read(self._output(code.binary, "nvdisasm", "-c"))

    def _compile(self, kernel: Kernel, architecture: int) -> Code:
        code, name = self.compiler.compile(kernel, architecture, sources())
        usage = self._output(code, "cuobjdump", "-res-usage").partition(f"Function {name.decode()}:")[2]
        resources = _RESOURCES.search(usage)
        if resources is None:
            raise RuntimeError(f"{kernel.expression}: cuobjdump names no registers")
        registers, stack, shared, local = map(int, resources.groups())
        return Code(code, registers, stack + local, shared)

    def _output(self, code: bytes, *command: str) -> str:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(code)
            file.flush()
            tool = [self._folder / "bin" / command[0], *command[1:], file.name]
            return subprocess.run(tool, capture_output=True, text=True, check=True).stdout


def read(listing: str) -> Listing:
    """What nvdisasm lists."""
    texts: list[str] = []
    labels: dict[str, int] = {}
    for label, instruction in _LINE.findall(listing):
        text = instruction.strip()
        if label:
            labels[label] = len(texts)
        elif not text.startswith("NOP"):
            texts.append(text)
    count = 1 + max((number for number, text in enumerate(texts) if "EXIT" in text), default=len(texts) - 1)
    branches: dict[int, Branch] = {}
    ends: dict[int, int] = {}
    for number, text in enumerate(texts[:count]):
        found = _BRANCH.search(text)
        target = labels.get(found.group(1), count) if found else count
        if found and target <= number:
            ends[target] = number + 1  # the last branch back: `continue` makes others
        elif found and target <= count:
            branches[number] = Branch(text.startswith("BRA `"), target)
    exits = tuple(number for number, text in enumerate(texts[:count]) if text.startswith("@") and "EXIT" in text)
    return Listing(count, branches, exits, tuple(sorted(ends.items())))
