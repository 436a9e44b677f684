"""NVIDIA's compiler for use in programs, NVRTC: from CUDA C++ to machine code. It needs no GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._ground.copies import not_copied

if TYPE_CHECKING:
    from .driver import Kernel

_OPTIONS = (b"--std=c++17",)
_OLDEST = (12, 0)


class CompileError(RuntimeError):
    """A kernel does not compile; the message has what the compiler says."""


class Compiler:
    """A loaded NVRTC. Serves many threads at once.

    Attributes:
        version: of it.
        architectures: those that it compiles for, 90 for sm_90.
        place: the path or the name by which it was found.
    """

    __reduce_ex__ = not_copied("a loaded library", "load it again")

    def __init__(self, library: Any, place: str = "") -> None:
        """Raises OSError if it is too old."""
        self.place = place
        self._library = library
        self._lock = threading.Lock()  # older ones compile one program at a time
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        if self.version < _OLDEST:
            raise OSError(f"expected NVRTC {_OLDEST[0]}.{_OLDEST[1]} or later, got {major.value}.{minor.value}")
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        self.architectures = frozenset(found)

    def compile(self, kernel: Kernel, architecture: int, headers: Mapping[str, bytes]) -> tuple[bytes, bytes]:
        """The machine code of a kernel, and its name in it.

        Args:
            headers: all that the kernel may include, by name.

        Raises:
            CompileError: it does not compile.
        """
        source = f'#include "{kernel.header}"\n'.encode()
        names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
        texts = (ctypes.c_char_p * len(headers))(*headers.values())
        options = (f"--gpu-architecture=sm_{architecture}{kernel.suffix}".encode(), *_OPTIONS)
        program = ctypes.c_void_p()
        expression = kernel.expression.encode()
        with self._lock:
            self._call("nvrtcCreateProgram", ctypes.byref(program), source, b"kernel.cu", len(headers), texts, names)
            try:
                self._call("nvrtcAddNameExpression", program, expression)
                result = self._library.nvrtcCompileProgram(
                    program, len(options), (ctypes.c_char_p * len(options))(*options)
                )
                if result:
                    log = self._bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                    text = log.rstrip(b"\0").decode(errors="replace").strip()
                    raise CompileError(f"{kernel.expression} of {kernel.header} does not compile: {text}")
                name = ctypes.c_char_p()
                self._call("nvrtcGetLoweredName", program, expression, ctypes.byref(name))
                assert name.value is not None
                return self._bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN"), name.value
            finally:
                self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, size: str, get: str) -> bytes:
        nbytes = ctypes.c_size_t()
        self._call(size, program, ctypes.byref(nbytes))
        data = ctypes.create_string_buffer(nbytes.value)
        self._call(get, program, data)
        return data.raw

    def _call(self, function: str, *arguments: Any) -> None:
        result = getattr(self._library, function)(*arguments)
        if result:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            text = self._library.nvrtcGetErrorString(result) or b""
            raise CompileError(f"{function}: {text.decode(errors='replace')}")


@functools.cache
def compiler(cuda: str | None) -> Compiler:
    """The one of this installation, for programs that use CUDA of that version: that of NVIDIA's packages, which
    torch's wheels need, else of the system.

    Raises:
        OSError: there is none, or it is too old.
    """
    problems: list[str] = []
    for name in _candidates(cuda):
        found = _loaded(name, problems)
        if found is not None:
            return found
    raise OSError(f"NVRTC cannot be loaded ({'; '.join(problems)}); pip install nvidia-cuda-nvrtc")


def _loaded(name: str, problems: list[str]) -> Compiler | None:
    try:
        return Compiler(ctypes.CDLL(name), name)
    except (OSError, CompileError, AttributeError) as error:
        problems.append(str(error))
        return None


def _candidates(cuda: str | None) -> Iterator[str]:
    """Paths and names, the best first: of the same CUDA as torch, then the newest."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except ValueError:  # something else stands for it in sys.modules
        spec = None
    folders = [Path(each) for each in (spec.submodule_search_locations or ())] if spec is not None else []
    found = {path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*")}
    major = (cuda or "").partition(".")[0]

    def preference(path: Path) -> tuple[bool, list[int], str]:
        numbers = re.findall(r"\d+", path.name)
        return numbers[:1] == [major], [int(each) for each in numbers], str(path)

    yield from (str(path) for path in sorted(found, key=preference, reverse=True))
    yield from (f"libnvrtc.so.{each}" for each in dict.fromkeys((major, "13", "12")) if each)
