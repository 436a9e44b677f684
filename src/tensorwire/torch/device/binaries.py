"""Compiled kernels, kept in the user's cache directory from one process to the next."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..._ground.new_file import NewFile

if TYPE_CHECKING:
    from .driver import Kernel
    from .nvrtc import Compiler

_log = logging.getLogger("tensorwire.torch.device")
_MAGIC = b"tensorwire kernel 2\n"
_MOST_NBYTES = 64 << 20
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
    """Where compiled kernels are kept: tensorwire/kernels in the directory that the user keeps caches in.

    Raises:
        RuntimeError: the user has no home directory, or a relative one, where others may have put files.
    """
    kept = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(kept) if kept.startswith("/") else Path.home() / ".cache"
    if not folder.is_absolute():
        raise RuntimeError(f"expected an absolute path in HOME, got {os.environ.get('HOME')!r}")
    return folder / "tensorwire" / "kernels"


def binary(kernel: Kernel, architecture: int, compiler: Compiler, *, anew: bool = False) -> Binary:
    """The kernel, compiled. One that was kept before is taken unless `anew` says not to; a damaged one never is."""
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
    """What is kept there; None if there is nothing, or not what was written for that name by this user or root."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            owned = status.st_uid in (os.geteuid(), 0)
            if not (stat.S_ISREG(status.st_mode) and owned and status.st_size <= _MOST_NBYTES):
                return None
            data = file.read(_MOST_NBYTES)
    except OSError:
        return None
    body = data[len(_MAGIC) + 32 :]
    if data[: len(_MAGIC)] != _MAGIC or _digest(path, body) != data[len(_MAGIC) :][:32]:
        return None
    name, _, code = body.partition(b"\0")
    return Binary(code, name, kept=True)


def _digest(path: Path, body: bytes) -> bytes:
    """With the name, so that a copy under the name of another kernel is none of that."""
    return hashlib.sha256(path.name.encode() + b"\n" + body).digest()


def _keep(path: Path, made: Binary) -> None:
    body = made.name + b"\0" + made.code
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        NewFile(path, force=True, example=path.name).write(_MAGIC + _digest(path, body) + body, sync=False)
    except FileExistsError:
        pass  # another process has compiled the same meanwhile
    except OSError as error:
        _say_once(str(path.parent), str(error))


@functools.cache
def _say_once(folder: str, error: str) -> None:
    _log.warning("%s cannot keep compiled kernels, each process compiles them anew: %s", folder, error)
