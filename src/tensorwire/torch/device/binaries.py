"""Compiled kernels, kept in the user's cache directory from one process to the next."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..._ground.new_file import NewFile

if TYPE_CHECKING:
    from .driver import Kernel
    from .nvrtc import Compiler

_log = logging.getLogger("tensorwire.torch.device")
_MAGIC = b"tensorwire kernel 1\n"
HEADERS = Path(__file__).parent / "cuda"
"""The headers of kernels."""


class Binary(NamedTuple):
    """Machine code for one architecture, the name of the kernel in it, and whether it was kept."""

    code: bytes
    name: bytes
    kept: bool = False


@functools.cache
def sources() -> dict[str, bytes]:
    """All headers by their names."""
    return {path.name: path.read_bytes() for path in sorted(HEADERS.iterdir()) if path.suffix in (".h", ".cuh")}


def cache_folder() -> Path:
    """Where compiled kernels are kept: tensorwire/kernels in the directory that the user keeps caches in."""
    kept = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(kept) if kept.startswith("/") else Path.home() / ".cache") / "tensorwire" / "kernels"


def binary(kernel: Kernel, architecture: int, compiler: Compiler, *, anew: bool = False) -> Binary:
    """The kernel, compiled. One that was kept before is taken unless `anew` says not to; a damaged one never is.

    Raises:
        CompileError: it does not compile.
    """
    digest = hashlib.sha256(repr((architecture, compiler.version, *kernel)).encode())
    for name, text in sources().items():
        digest.update(repr((name, len(text))).encode() + text)
    try:
        path = cache_folder() / f"{digest.hexdigest()[:40]}.cubin"
    except RuntimeError as error:  # there is no home directory
        _say_once("a user without home", str(error))
        return Binary(*compiler.compile(kernel, architecture, sources()))
    kept = None if anew else _read(path)
    if kept is None:
        kept = Binary(*compiler.compile(kernel, architecture, sources()))
        _keep(path, kept)
    return kept


def _read(path: Path) -> Binary | None:
    """What is kept there; None if there is nothing, or not what was written."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[len(_MAGIC) + 32 :]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) :][:32]:
        return None
    name, _, code = body.partition(b"\0")
    return Binary(code, name, kept=True)


def _keep(path: Path, made: Binary) -> None:
    body = made.name + b"\0" + made.code
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        NewFile(path, force=True, example=path.name).write(_MAGIC + hashlib.sha256(body).digest() + body, sync=False)
    except FileExistsError:
        pass  # another process has compiled the same meanwhile
    except OSError as error:
        _say_once(str(path.parent), str(error))


@functools.cache
def _say_once(folder: str, error: str) -> None:
    _log.warning("%s cannot keep compiled kernels, each process compiles them anew: %s", folder, error)
