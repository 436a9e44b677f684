"""The clock of the core that a thread runs on, and how C is compiled that measures."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 1 << 20


def load_clock(folder: Path) -> Callable[[], float]:
    """Compile clock.c in `folder`; gives the clock of the core that runs it, in Hz.

    Raises:
        RuntimeError: there is no C compiler.
    """
    function = compiled(Path(__file__).with_name("clock.c"), folder, "-O2").clock_hz
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_uint64]
    return lambda: max(function(ROUNDS) for _ in range(3))


def compiled(source: Path, folder: Path, *flags: str) -> ctypes.CDLL:
    """The functions of a C source, whose library is made in `folder`.

    Raises:
        RuntimeError: there is no C compiler.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise RuntimeError(f"{source.name} needs a C compiler: install the Debian package gcc, or set CC")
    library = folder / f"{source.stem}.so"
    subprocess.run([compiler, *flags, "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))
