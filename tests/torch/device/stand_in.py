"""A driver for tests: kernels are compiled with g++, and run on the CPU's memory.

    driver = StandIn(checked=True)
    driver.function(Kernel("words.cuh", "resident_words<Bf16>")).launch(grid, 256, 0, 0, packed(frame, out, 7))

The checked build ends a launch with KernelError at the first access outside the buffers of its arguments and its shared
arrays, and at the first race on shared memory. A buffer is the tensor that an argument points into: one of those that
`watch` was given, else any tensor that is alive, with all of its storage. An argument that is a pointer to const makes
its buffer one that is only read.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import os
import re
import shutil
import subprocess
import sys
import weakref
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tensorwire.torch.device import driver as device_driver
from tensorwire.torch.device.writing.kept import Kept

if TYPE_CHECKING:
    from types import ModuleType

    import pytest

    from tensorwire.torch.device.driver import Kernel

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CUDA = Path(device_driver.__file__).parent / "cuda"
_BUILT = ROOT / "build" / "stand_in"
_FLAGS = ("-Og", "-std=c++17", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-fvisibility=hidden", "-w")
_CHECKS = ("-fsanitize=thread", "-fsanitize=alignment")
_MESSAGE_NBYTES = 1024
_PARTS = ("shim.cpp", "shim_checks.cpp", "shim_wgmma.cpp")


def missing() -> str:
    """Why kernels cannot be compiled here; empty if they can."""
    if sys.platform != "linux" or shutil.which("g++") is None or "clang" in _compiler():
        return "kernels are compiled for the CPU with GNU's g++ on Linux"
    return ""


class KernelError(AssertionError):
    """A kernel did what it must not do."""


class _Index(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32))


class _Buffer(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_uint64), ("nbytes", ctypes.c_uint64), ("writable", ctypes.c_bool))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("grid", _Index),
        ("threads", ctypes.c_uint32),
        ("shared_nbytes", ctypes.c_uint32),
        ("buffers", ctypes.c_void_p),
        ("num_buffers", ctypes.c_uint32),
        ("checked", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
    )


class Launched(NamedTuple):
    """A launch, as the stand-in counts them."""

    kernel: Kernel
    grid: tuple[int, int, int]
    threads: int
    shared_nbytes: int


def packed(*values: torch.Tensor | int | float) -> ctypes.Array[ctypes.c_void_p]:
    """Arguments of a launch: addresses of tensors, floats, integers of 32 bits. They live as long as the result."""
    cells = [
        ctypes.c_uint64(value.data_ptr()) if isinstance(value, torch.Tensor)
        else ctypes.c_float(value) if isinstance(value, float)
        else ctypes.c_uint32(value)
        for value in values
    ]  # fmt: skip
    array = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
    array.cells = cells  # type: ignore[attr-defined]
    return array


class StandIn:
    """Implements Driver. A seed other than 0 shuffles the order in which blocks, warps and lanes run.

    Attributes:
        launches: all launches so far.
        compiled: how often each kernel was asked for.
    """

    num_processors: int = 4
    shared_nbytes: int = 227 << 10
    architecture: int = 90
    cache_nbytes: int = 0

    def __init__(self, *, checked: bool = False, seed: int = 0, headers: Path = CUDA) -> None:
        self.checked = checked
        self.seed = seed
        self.headers = headers
        self.launches: list[Launched] = []
        self.compiled: Counter[Kernel] = Counter()
        self._watched: list[tuple[torch.Tensor, bool]] = []

    def watch(self, *tensors: torch.Tensor, writable: bool = False) -> None:
        """Buffers of later launches: contiguous tensors, each with exactly its own bytes. A tensor whose address stands
        in a table is read alone, unless it is writable."""
        self._watched += [(tensor, writable) for tensor in tensors]

    def forget(self) -> None:
        """Watch nothing any more."""
        self._watched.clear()

    def stream(self) -> int:
        return 0

    def function(self, kernel: Kernel, shared_nbytes: int = 0) -> _Function:
        if shared_nbytes > self.shared_nbytes:
            raise ValueError(f"expected at most {self.shared_nbytes} bytes of shared memory, got {shared_nbytes}")
        self.compiled[kernel] += 1
        return _Function(self, kernel, max(shared_nbytes, 48 << 10))

    def buffers(self, addresses: list[tuple[int, bool]]) -> list[_Buffer]:
        """What is watched and what the addresses point into, each with whether it may be written."""
        found = {  # kernels may have their addresses from a table
            (each.data_ptr(), each.numel() * each.element_size()): writable
            for each, writable in self._watched
            if each.numel()
        }
        spans = list(found)
        unknown: list[tuple[int, bool]] = []
        for address, writable in addresses:
            inside = [span for span in spans if span[0] <= address < span[0] + span[1]]
            if inside:
                found[inside[-1]] = found.get(inside[-1], False) or writable
            elif address:
                unknown.append((address, writable))
        if unknown:
            storages = _living_storages()
            for address, writable in unknown:
                inside = [span for span in storages if span[0] <= address < span[0] + span[1]]
                for span in inside[:1]:  # none: an empty tensor, which has no byte
                    found[span] = found.get(span, False) or writable
        return [_Buffer(begin, nbytes, writable) for (begin, nbytes), writable in found.items()]


def stand_in_for_a_gpu(monkeypatch: pytest.MonkeyPatch, module: ModuleType, driver: StandIn | None) -> None:
    """Let the functions of a module take CPU tensors as those of a GPU, whose driver this is; None: as what they are.
    What earlier calls have made is not found."""
    monkeypatch.setattr(module, "required_driver", lambda device: driver)
    if hasattr(module, "_kept"):
        monkeypatch.setattr(module, "_kept", Kept())


class _Function:
    """Implements Function. The kernel is compiled when it is launched first: many are asked for and never launched."""

    def __init__(self, driver: StandIn, kernel: Kernel, shared_nbytes: int) -> None:
        self._driver = driver
        self._kernel = kernel
        self._shared_nbytes = shared_nbytes

    @functools.cached_property
    def _library(self) -> ctypes.PyDLL:
        return _library(self._kernel, self._driver.headers, self._driver.checked)

    @functools.cached_property
    def _parameters(self) -> str:
        return ctypes.c_char_p.in_dll(self._library, "shim_parameters").value.decode()  # type: ignore[union-attr]

    def launch(
        self, grid: tuple[int, int, int], threads: int, shared_nbytes: int, stream: int,
        arguments: ctypes.Array[ctypes.c_void_p],
    ) -> None:  # fmt: skip
        driver, parameters = self._driver, self._parameters
        if len(arguments) != len(parameters):
            raise KernelError(f"{self._kernel}: expected {len(parameters)} arguments, got {len(arguments)}")
        if not (0 < threads <= 1024 and threads % 32 == 0 and min(grid) > 0 and max(grid[1:]) < 65536):
            raise KernelError(f"{self._kernel}: no device launches the grid {grid} with {threads} threads")
        if shared_nbytes > self._shared_nbytes:
            raise KernelError(f"{self._kernel}: {shared_nbytes} bytes of shared memory, more than was asked for")
        driver.launches.append(Launched(self._kernel, grid, threads, shared_nbytes))
        pointers = [
            (ctypes.c_uint64.from_address(argument).value, letter == "w")
            for argument, letter in zip(arguments, parameters, strict=True)
            if letter != "v" and argument is not None
        ]
        buffers = driver.buffers(pointers) if driver.checked else []
        launch = _Launch(
            ctypes.cast(self._library.shim_call, ctypes.c_void_p).value, ctypes.addressof(arguments), _Index(*grid),
            threads, shared_nbytes, 0, len(buffers), driver.checked, driver.seed,
        )  # fmt: skip
        array = (_Buffer * max(1, len(buffers)))(*buffers)
        launch.buffers = ctypes.addressof(array)
        message = ctypes.create_string_buffer(_MESSAGE_NBYTES)
        if self._library.shim_launch(ctypes.byref(launch), message, _MESSAGE_NBYTES):
            which = [f"buffer {k} at {b.begin:#x}, {b.nbytes} bytes" for k, b in enumerate(buffers)]
            raise KernelError(f"{self._kernel.expression}: {message.value.decode()} ({'; '.join(which)})")


_MANY = 30_000
_frozen: list[weakref.ref[torch.Tensor]] = []
"""Tensors among what the garbage collector no longer lists."""


def _living_tensors() -> list[torch.Tensor]:
    """But for those that were there when all tests had been collected (tests/torch/conftest.py). What a test imports is
    hundreds of thousands of objects: they are gone through once."""
    kinds = _with_subclasses(torch.Tensor) - _with_subclasses(FakeTensor)  # one of these is of no memory
    things = gc.get_objects()
    is_many = len(things) > _MANY
    found = [tensor for each in _frozen if (tensor := each()) is not None]
    found += [thing for thing in things if type(thing) in kinds]
    if is_many:
        del things
        gc.collect()
        _frozen[:] = map(weakref.ref, found)
        gc.freeze()
    return found


def _living_storages() -> list[tuple[int, int]]:
    spans = set()
    for tensor in _living_tensors():
        if tensor.device.type == "cpu" and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            with suppress(RuntimeError):  # it stands for one that has no memory
                spans.add((storage.data_ptr(), storage.nbytes()))
    return sorted(span for span in spans if span[1])


def _with_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))


def _sources(header: str, folder: Path) -> list[Path]:
    """A header and all that it includes: a test's own, or those of the package."""
    found: list[Path] = []
    names = [header]
    while names:
        name = names.pop()
        path = folder / name if (folder / name).exists() else CUDA / name
        if path not in found:
            found.append(path)
            names += re.findall(r'^#include "(?!dev\.h)(.+)"', path.read_text(), re.MULTILINE)
    return sorted(found)


@functools.cache
def _compiler() -> str:
    run = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()[0]


@functools.cache
def _linker() -> tuple[str, ...]:
    """The one that takes a third of the time, where it is installed."""
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


def _digest(*parts: bytes | str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:24]


def _compile(target: Path, arguments: list[str], source: str | None = None) -> None:
    """Compile to a file of another name first: processes may do the same at the same time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f"{os.getpid()}-{target.name}")
    command = ["g++", *_FLAGS, *arguments, "-o", str(made)]
    run = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if run.returncode:
        raise AssertionError(f"{' '.join(command)} failed:\n{source or ''}\n{run.stderr}")
    made.replace(target)


@functools.cache
def _shim() -> list[Path]:
    texts = [(HERE / name).read_bytes() for name in ("shim.h", "shim_block.h", *_PARTS)]
    name = _digest(*texts, *_FLAGS, _compiler())
    targets = [_BUILT / f"{Path(part).stem}-{name}.o" for part in _PARTS]
    for target, source in zip(targets, _PARTS, strict=True):
        if not target.exists():
            _compile(target, ["-O2", "-c", str(HERE / source)])
    return targets


@functools.cache
def _library(kernel: Kernel, folder: Path, checked: bool) -> ctypes.PyDLL:
    shim = _shim()
    texts = [path.read_bytes() for path in _sources(kernel.header, folder)]
    name = _digest(shim[0].name, kernel.header, kernel.expression, str(checked), *texts)
    target = _BUILT / f"{name}.so"
    if not target.exists():
        source = f"""#include "{kernel.header}"
typedef ShimKernel<{kernel.expression}> Called;
extern "C" __attribute__((visibility("default"))) const char* const shim_parameters = Called::parameters;
extern "C" __attribute__((visibility("default"))) void shim_call(void** arguments) {{ Called::call(arguments); }}
"""
        # Compiled and linked apart: a linker that knows of the checks would add the sanitizer's own library.
        part = target.with_suffix(f".{os.getpid()}.o")
        checks = list(_CHECKS) if checked else []
        include = ["-include", str(HERE / "shim.h"), "-I", str(folder), "-I", str(CUDA)]
        _compile(part, [*checks, *include, "-x", "c++", "-c", "-"], source)
        _compile(target, [*_linker(), "-shared", str(part), *map(str, shim)])
        part.unlink()
    library: Any = ctypes.PyDLL(str(target))  # one launch at a time: the shim has one set of fibers
    library.shim_launch.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32)
    return library
