"""NVIDIA's driver: kernels are loaded and launched on a GPU, in torch's own context and on its streams."""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..._ground.copies import not_copied
from .binaries import Binary, binary
from .driver import Kernel
from .nvrtc import CompileError, Compiler, compiler

if TYPE_CHECKING:
    from .driver import Driver

_log = logging.getLogger("tensorwire.torch.device")
_OLDEST_ARCHITECTURE = 80  # that multiplies BF16
_PROCESSORS, _CACHE_NBYTES, _MAJOR, _MINOR, _SHARED_NBYTES = 16, 38, 75, 76, 97  # attributes of a device
_DYNAMIC_SHARED_NBYTES = 8  # attribute of a function
_USUAL_SHARED_NBYTES = 48 << 10
# CUlaunchConfig: the grid, the threads of a block, its shared memory, the stream, and no attributes. One object is
# converted in a third of the time that eight arguments of cuLaunchKernel take.
_CONFIG = struct.Struct("7I4xQQI4x")
_FIRST = Kernel("copy.cuh", "copy_blocks<2>")
"""The kernel by which a GPU shows that it takes what NVRTC makes."""


_opening = threading.Lock()


class CudaError(RuntimeError):
    """A call of the driver failed; the message has its name and that of the error."""


class NvidiaDriver:
    """Implements Driver for one GPU. Serves many threads at once."""

    __reduce_ex__ = not_copied("a context of this process", "ask for the driver again")

    def __init__(self, index: int, library: Any, compiler: Compiler) -> None:
        """
        Args:
            index: of the device, as torch counts.
            library: libcuda.so.1, or what stands for it in a test.
        """
        self._index = index
        self._library = library
        self._compiler = compiler
        self._lock = threading.Lock()
        self._functions: dict[Kernel, NvidiaFunction] = {}
        self._allowed: dict[Kernel, int] = {}  # bytes of shared memory
        # With the types known, a call converts its arguments in less time.
        library.cuLaunchKernelEx.argtypes = (ctypes.c_char_p, *[ctypes.c_void_p] * 3)
        library.cuCtxGetCurrent.argtypes = (ctypes.c_void_p,)
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), index)
        self.num_processors = self._attribute(device, _PROCESSORS)
        self.shared_nbytes = self._attribute(device, _SHARED_NBYTES)
        self.cache_nbytes = self._attribute(device, _CACHE_NBYTES)
        self.architecture = 10 * self._attribute(device, _MAJOR) + self._attribute(device, _MINOR)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)  # torch's, which stays
        self._context = context.value

    def stream(self) -> int:
        return int(torch._C._cuda_getCurrentRawStream(self._index))

    def function(self, kernel: Kernel, shared_nbytes: int = 0) -> NvidiaFunction:
        """
        Raises:
            CompileError: it does not compile.
            CudaError: the driver does not take it.
        """
        if shared_nbytes > self.shared_nbytes:
            raise ValueError(f"expected at most {self.shared_nbytes} bytes of shared memory, got {shared_nbytes}")
        with self._lock:
            if kernel not in self._functions:
                self._functions[kernel] = self._load(kernel)
            function = self._functions[kernel]
            if shared_nbytes > self._allowed.get(kernel, _USUAL_SHARED_NBYTES):
                with self.context():
                    self.call("cuFuncSetAttribute", function.address, _DYNAMIC_SHARED_NBYTES, shared_nbytes)
                self._allowed[kernel] = shared_nbytes
        return function

    @contextmanager
    def context(self) -> Iterator[None]:
        """Torch's context is the current one of this thread, for the length of a ``with`` block."""
        left = self.enter()
        try:
            yield
        finally:
            if left:
                self.leave()

    def enter(self) -> bool:
        """Make torch's context the current one of this thread; whether `leave` must be called."""
        current = ctypes.c_void_p()
        self.check("cuCtxGetCurrent", self._library.cuCtxGetCurrent(ctypes.byref(current)))
        if current.value == self._context:
            return False
        self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(self._context))
        return True

    def leave(self) -> None:
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; CudaError if it fails."""
        self.check(name, getattr(self._library, name)(*arguments))

    def check(self, name: str, result: int) -> None:
        """CudaError if a function of the driver has failed."""
        if result:
            texts = []
            for function in ("cuGetErrorName", "cuGetErrorString"):
                text = ctypes.c_char_p()
                getattr(self._library, function)(result, ctypes.byref(text))
                texts.append((text.value or b"unknown").decode(errors="replace"))
            raise CudaError(f"{name}: {texts[0]} ({texts[1]})")

    def _attribute(self, device: ctypes.c_int, attribute: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        return value.value

    def _load(self, kernel: Kernel) -> NvidiaFunction:
        made = binary(kernel, self.architecture, self._compiler)
        with self.context():
            try:
                function = self._function(made)
            except CudaError:
                if not made.kept:
                    raise
                function = self._function(binary(kernel, self.architecture, self._compiler, anew=True))
        return NvidiaFunction(self, function, self._library.cuLaunchKernelEx)

    def _function(self, made: Binary) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), made.code)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, made.name)
        return function


class NvidiaFunction:
    """Implements Function."""

    __slots__ = ("_driver", "_launch", "address")

    def __init__(self, driver: NvidiaDriver, address: ctypes.c_void_p, launch: Any) -> None:
        self._driver = driver
        self.address = address
        self._launch = launch

    def launch(
        self, grid: tuple[int, int, int], threads: int, shared_nbytes: int, stream: int,
        arguments: ctypes.Array[ctypes.c_void_p],
    ) -> None:  # fmt: skip
        left = self._driver.enter()
        config = _CONFIG.pack(*grid, threads, 1, 1, shared_nbytes, stream, 0, 0)
        result = self._launch(config, self.address, arguments, None)
        if left:
            self._driver.leave()
        if result:
            self._driver.check("cuLaunchKernelEx", result)


def driver_for(device: torch.device) -> Driver | None:
    """What compiles and launches kernels in CUDA C++ there; None if that cannot be done, which is logged once."""
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    with _opening:
        return _driver(torch.cuda.current_device() if device.index is None else device.index)


def required_driver(device: torch.device) -> Driver | None:
    """What runs kernels on a device; None for the CPU.

    Raises:
        RuntimeError: it is neither the CPU nor a device whose kernels NVRTC compiles.
    """
    if device.type == "cpu":
        return None
    driver = driver_for(device)
    if driver is None:
        raise RuntimeError(
            f"expected tensors on the CPU, or on a GPU of NVIDIA's whose kernels NVRTC compiles, got some on {device}; "
            "move them to the CPU, or install what the log says is missing, such as nvidia-cuda-nvrtc"
        )
    return driver


@functools.cache
def _driver(index: int) -> Driver | None:
    try:
        made = compiler(torch.version.cuda)
        driver = NvidiaDriver(index, ctypes.CDLL("libcuda.so.1"), made)
        if driver.architecture < _OLDEST_ARCHITECTURE:
            raise OSError(f"expected a GPU of sm_{_OLDEST_ARCHITECTURE} or later, got sm_{driver.architecture}")
        if driver.architecture not in made.architectures:
            version = ".".join(map(str, made.version))
            raise OSError(f"NVRTC {version} does not know sm_{driver.architecture}; pip install -U nvidia-cuda-nvrtc")
        driver.function(_FIRST)
    except (OSError, AttributeError, CudaError, CompileError) as error:
        _log.warning("cuda:%d: Triton decodes, which is slower than kernels in CUDA C++: %s", index, error)
        return None
    return driver
