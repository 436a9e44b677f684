"""What compiles kernels, keeps them and launches them on a GPU, with fakes of NVRTC and of the driver's library."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import struct
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tensorwire.torch.device import binaries, nvidia, nvrtc
from tensorwire.torch.device.binaries import Binary, binary, cache_folder
from tensorwire.torch.device.driver import Kernel
from tensorwire.torch.device.nvidia import CudaError, NvidiaDriver, driver_for
from tensorwire.torch.device.nvrtc import CompileError, Compiler

from .every_kernel import compile_all, kernels_of, usual_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KERNEL = Kernel("copy.cuh", "copy_blocks<2>")
CONTEXT, OTHER_CONTEXT = 0x1000, 0x2000
ATTRIBUTES = {16: 132, 38: 50 << 20, 75: 9, 76: 0, 97: 232_448}
UNSUPPORTED = 222


class FakeCompiler:
    """NVRTC, as far as others see it."""

    version = (13, 1)
    architectures = frozenset({80, 90})

    def __init__(self) -> None:
        self.compiled: list[tuple[Kernel, int]] = []

    def compile(self, kernel: Kernel, architecture: int, headers: Any) -> tuple[bytes, bytes]:
        assert kernel.header in headers
        self.compiled.append((kernel, architecture))
        return b"code\0 of " + repr((kernel, architecture)).encode(), b"lowered_name"


class FakeCuda:
    """The driver's library. Attributes of a test: what happens, and what was called."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.launched: list[tuple[Any, ...]] = []
        self.loaded: list[bytes] = []
        self.attributes: list[tuple[int, int]] = []
        self.current = CONTEXT
        self.results: dict[str, list[int]] = {}
        self.facts = dict(ATTRIBUTES)

    def __getattr__(self, name: str) -> Callable[..., int]:
        """A function of the library; `argtypes` may be set."""
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.called.append(name)
            results = self.results.get(name)
            result = results.pop(0) if results else 0
            return result or int(getattr(self, f"_{name}", lambda *_: 0)(*arguments) or 0)

        setattr(self, name, call)
        return call

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, _: Any) -> None:  # noqa: N802 - names of the driver
        value._obj.value = self.facts[attribute]

    def _cuDevicePrimaryCtxRetain(self, context: Any, _: Any) -> None:  # noqa: N802
        context._obj.value = CONTEXT

    def _cuCtxGetCurrent(self, context: Any) -> None:  # noqa: N802
        context._obj.value = self.current

    def _cuModuleLoadData(self, module: Any, code: bytes) -> None:  # noqa: N802
        self.loaded.append(code)
        module._obj.value = 7

    def _cuModuleGetFunction(self, function: Any, _: Any, name: bytes) -> None:  # noqa: N802
        assert name == b"lowered_name"
        function._obj.value = 0x3000

    def _cuFuncSetAttribute(self, _: Any, attribute: int, value: int) -> None:  # noqa: N802
        self.attributes.append((attribute, value))

    def _cuLaunchKernelEx(self, config: bytes, function: Any, arguments: Any, extra: Any) -> None:  # noqa: N802
        self.launched.append((struct.unpack("7I4xQQI4x", config), function.value, arguments, extra))

    def _cuGetErrorName(self, result: int, text: Any) -> None:  # noqa: N802
        text._obj.value = b"CUDA_ERROR_UNSUPPORTED_PTX_VERSION" if result == UNSUPPORTED else b"CUDA_ERROR_UNKNOWN"

    def _cuGetErrorString(self, _: int, text: Any) -> None:  # noqa: N802
        text._obj.value = b"in words"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    binaries._say_once.cache_clear()
    nvidia._driver.cache_clear()
    yield tmp_path / "tensorwire" / "kernels"
    nvidia._driver.cache_clear()


def test_a_launch() -> None:
    cuda, compiler = FakeCuda(), FakeCompiler()
    driver = NvidiaDriver(0, cuda, compiler)
    assert (driver.num_processors, driver.shared_nbytes, driver.architecture) == (132, 232_448, 90)
    assert driver.cache_nbytes == 50 << 20
    arguments = (ctypes.c_void_p * 2)()
    driver.function(KERNEL).launch((5, 2, 1), 256, 512, 0x4000, arguments)
    assert cuda.launched == [((5, 2, 1, 256, 1, 1, 512, 0x4000, 0, 0), 0x3000, arguments, None)]
    assert compiler.compiled == [(KERNEL, 90)]
    driver.function(KERNEL).launch((5, 2, 1), 256, 512, 0x4000, arguments)
    assert len(compiler.compiled) == len(cuda.loaded) == 1
    assert "cuCtxPushCurrent_v2" not in cuda.called


def test_another_context_is_left_for_a_launch() -> None:
    """A thread may have used another device last, or none."""
    cuda = FakeCuda()
    function = NvidiaDriver(0, cuda, FakeCompiler()).function(KERNEL)
    cuda.current, cuda.called = OTHER_CONTEXT, []
    function.launch((1, 1, 1), 32, 0, 0, (ctypes.c_void_p * 1)())
    assert cuda.called == ["cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuLaunchKernelEx", "cuCtxPopCurrent_v2"]


def test_errors_have_the_names_of_the_driver() -> None:
    cuda = FakeCuda()
    function = NvidiaDriver(0, cuda, FakeCompiler()).function(KERNEL)
    cuda.results["cuLaunchKernelEx"] = [719]
    with pytest.raises(CudaError, match=r"cuLaunchKernelEx: CUDA_ERROR_UNKNOWN \(in words\)"):
        function.launch((1, 1, 1), 32, 0, 0, (ctypes.c_void_p * 1)())


def test_shared_memory() -> None:
    """More than each block may have has to be asked for, once."""
    cuda = FakeCuda()
    driver = NvidiaDriver(0, cuda, FakeCompiler())
    for nbytes in (0, 48 << 10, 60_000, 50_000, 60_000, 70_000):
        driver.function(KERNEL, nbytes)
    assert cuda.attributes == [(8, 60_000), (8, 70_000)]
    with pytest.raises(ValueError, match="at most 232448 bytes of shared memory, got 232449"):
        driver.function(KERNEL, 232_449)


def test_compiled_kernels_are_kept(cache: Path) -> None:
    """By kernel, architecture and version of the compiler."""
    compiler = FakeCompiler()
    first = binary(KERNEL, 90, compiler)
    assert not first.kept
    assert cache_folder() == cache
    kept = binary(KERNEL, 90, FakeCompiler())
    assert kept == first._replace(kept=True)
    assert len(list(cache.iterdir())) == 1
    compiler.version = (13, 2)
    for kernel, architecture in ((KERNEL, 90), (KERNEL, 80), (KERNEL._replace(expression="copy_blocks<4>"), 90)):
        assert not binary(kernel, architecture, compiler).kept
    assert len(compiler.compiled) == len(list(cache.iterdir())) == 4


@pytest.mark.parametrize(
    "damage", [lambda x: x[:-1], lambda x: x[:40] + b"?" + x[41:], lambda x: b"", lambda x: x[:20]]
)
def test_a_damaged_one_is_compiled_anew(damage: Callable[[bytes], bytes], cache: Path) -> None:
    made = binary(KERNEL, 90, FakeCompiler())
    (path,) = cache.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    compiler = FakeCompiler()
    assert binary(KERNEL, 90, compiler) == made
    assert len(compiler.compiled) == 1
    assert binary(KERNEL, 90, compiler).kept


def test_a_kept_one_that_the_driver_refuses_is_compiled_anew() -> None:
    compiler = FakeCompiler()
    binary(KERNEL, 90, compiler)
    cuda = FakeCuda()
    cuda.results["cuModuleLoadData"] = [200]
    NvidiaDriver(0, cuda, compiler).function(KERNEL)
    assert len(compiler.compiled) == 2
    cuda.results["cuModuleLoadData"] = [UNSUPPORTED, UNSUPPORTED]
    with pytest.raises(CudaError, match="cuModuleLoadData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION"):
        NvidiaDriver(0, cuda, compiler).function(KERNEL)


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each process compiles anew, and says so once."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compiler = FakeCompiler()
    for _ in range(2):
        assert binary(KERNEL, 90, compiler).name == b"lowered_name"
    assert len(compiler.compiled) == 2
    assert len(caplog.records) == 1
    assert "cannot keep compiled kernels, each process compiles them anew" in caplog.records[0].getMessage()


def link(path: Path, data: bytes) -> None:
    path.with_name("elsewhere").write_bytes(data)
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("put", [link, lambda path, _: os.mkfifo(path), lambda path, _: path.mkdir()])
def test_what_somebody_else_may_have_put_there_is_not_loaded(put: Callable[[Path, bytes], object], cache: Path) -> None:
    made = binary(KERNEL, 90, FakeCompiler())
    (path,) = cache.iterdir()
    data = path.read_bytes()
    path.unlink()
    put(path, data)
    assert binary(KERNEL, 90, FakeCompiler()) == made


def test_a_file_of_another_user_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = binary(KERNEL, 90, FakeCompiler())
    owner, real = 12345, os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result((*real(file)[:4], owner, *real(file)[5:])))
    assert binary(KERNEL, 90, FakeCompiler()) == made


def test_a_copy_under_another_name_is_not_loaded(cache: Path) -> None:
    """A kernel with other arguments would write anywhere."""
    binary(KERNEL, 90, FakeCompiler())
    (first,) = cache.iterdir()
    data = first.read_bytes()
    made = binary(KERNEL, 80, FakeCompiler())
    (second,) = set(cache.iterdir()) - {first}
    second.write_bytes(data)
    assert binary(KERNEL, 80, FakeCompiler()) == made


def test_a_relative_home_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What lies in the current directory may be anybody's."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "here")
    monkeypatch.chdir(tmp_path)
    assert not binary(KERNEL, 90, FakeCompiler()).kept
    assert list(tmp_path.iterdir()) == []
    assert "expected an absolute path in HOME, got 'here'" in caplog.text


def test_many_keep_the_same_at_once(cache: Path) -> None:
    barrier = threading.Barrier(4)

    def make(_: int) -> Binary:
        barrier.wait()
        return binary(KERNEL, 90, FakeCompiler())

    with ThreadPoolExecutor(4) as pool:
        assert len({(each.code, each.name) for each in pool.map(make, range(4))}) == 1
    assert len(list(cache.iterdir())) == 1, "nothing else is left behind"
    assert binary(KERNEL, 90, FakeCompiler()).kept


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A driver's library and NVRTC for `driver_for`."""
    cuda = FakeCuda()
    monkeypatch.setattr(nvidia, "compiler", lambda version: FakeCompiler())
    real = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name, *a, **k: cuda if name == "libcuda.so.1" else real(name, *a, **k))
    return cuda


def test_each_device_has_its_driver(gpu: FakeCuda) -> None:
    first, second = driver_for(torch.device("cuda", 0)), driver_for(torch.device("cuda", 1))
    assert first is not None
    assert second is not None
    assert first is not second
    assert driver_for(torch.device("cuda", 0)) is first
    assert driver_for(torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("result", "facts", "message"),
    [
        ({"cuInit": [100]}, {}, "cuInit: CUDA_ERROR_UNKNOWN"),
        ({"cuModuleLoadData": [UNSUPPORTED]}, {}, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        ({}, {75: 7, 76: 5}, "expected a GPU of sm_80 or later, got sm_75"),
        ({}, {75: 12, 76: 0}, r"NVRTC 13\.1 does not know sm_120; pip install -U nvidia-cuda-nvrtc"),
    ],
    ids=["no device", "old driver", "old GPU", "old NVRTC"],
)
def test_what_cannot_be_used_is_said_once(
    result: dict[str, list[int]], facts: dict[int, int], message: str, gpu: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.results, gpu.facts = result, {**ATTRIBUTES, **facts}
    for _ in range(2):
        assert driver_for(torch.device("cuda", 0)) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("cuda:0: Triton decodes")
    assert re.search(message, record.getMessage())


def test_no_nvrtc(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    nvrtc.compiler.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver_for(torch.device("cuda", 0)) is None
    assert "cannot open shared object file" in caplog.records[0].getMessage()
    assert caplog.records[0].getMessage().endswith("pip install nvidia-cuda-nvrtc")


def real_compiler() -> Compiler:
    nvrtc.compiler.cache_clear()
    try:
        return nvrtc.compiler(torch.version.cuda)
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_kernels_compile(architecture: int) -> None:
    version = real_compiler().version
    if architecture == 100 and version < (12, 8):
        pytest.skip("NVRTC knows this architecture from CUDA 12.8 on")
    for _, _, nbytes, _ in compile_all(kernels_of(usual_frames()), [architecture]):
        assert nbytes > 0


def test_a_module_that_stands_for_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("nvidia")
    module.__spec__ = None
    monkeypatch.setitem(sys.modules, "nvidia", module)
    assert list(nvrtc._candidates("12.8")) == ["libnvrtc.so.12", "libnvrtc.so.13"]


def test_what_the_compiler_says_is_passed_on() -> None:
    with pytest.raises(CompileError, match=r"(?s)missing of copy\.cuh does not compile: .*missing.* is undefined"):
        real_compiler().compile(Kernel("copy.cuh", "missing"), 90, binaries.sources())
