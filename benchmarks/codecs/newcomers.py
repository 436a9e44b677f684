"""Peers of 2026 beside those of ``tensorwire bench``. They come with the extra ``bench`` alone: two may not be used in
every way (glyd: BUSL-1.1, bigsmall: Elastic-2.0), and bigsmall brings a compiler."""

from __future__ import annotations

import itertools
import json
from functools import partial
from importlib import import_module
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tensorwire.cli.peers import Adapter, Codec
from tensorwire.codec import dtype_bits

_Z4AI = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F64": "fp64", "F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2"}


def _z4ai(dtype: str, threads: int, verify: bool) -> Codec:
    if dtype not in _Z4AI:
        raise ValueError(f"z4ai does not take {dtype}")
    peer = import_module("z4ai")
    return Codec(
        partial(peer.compress, dtype=_Z4AI[dtype], threads=threads),
        lambda packed, out: peer.decompress(packed, out=out),
    )


def _glyd(dtype: str, threads: int, verify: bool) -> Codec:
    """It finds the dtype in the header of a safetensors file, and takes bare bytes for no weights."""
    peer = import_module("glyd")
    return Codec(
        partial(peer.compress, level="max", threads=threads),
        lambda packed, out: _data_of(peer.decompress(packed)),
        lambda data: _safetensors(data, dtype),
    )


class _File:
    """A file that a peer wrote, which lasts as long as this."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return self.path.stat().st_size

    def __del__(self) -> None:
        self.path.unlink(missing_ok=True)


def _by_files(
    dtype: str, threads: int, verify: bool, module: str, options: dict[str, Any], again: dict[str, Any]
) -> Codec:
    """A peer that makes files from files. They lie in memory where the system has a file system for that.

    Args:
        options, again: what its functions `compress` and `decompress` take beside two paths.
    """
    peer = import_module(module)
    memory = Path("/dev/shm")
    folder = TemporaryDirectory(dir=memory if memory.is_dir() else None)
    root, count = Path(folder.name), itertools.count()
    source, result = root / "tensor.safetensors", root / "result.safetensors"

    def prepare(data: memoryview) -> str:
        source.write_bytes(_safetensors(data, dtype))
        return str(source)

    def to_file(prepared: str) -> _File:
        made = _File(root / str(next(count)))
        peer.compress(prepared, str(made.path), **options)
        return made

    # The folder goes with the last that holds it, which is this function.
    def to_data(packed: _File, out: memoryview, folder: TemporaryDirectory[str] = folder) -> memoryview:
        peer.decompress(str(packed.path), str(result), **again)
        with result.open("rb") as file:
            return _data_of(mmap(file.fileno(), 0, access=ACCESS_READ))

    return Codec(to_file, to_data, prepare)


def _safetensors(data: memoryview, dtype: str) -> bytes:
    """A safetensors file of one tensor."""
    entry = {"dtype": dtype, "shape": [8 * len(data) // dtype_bits(dtype)], "data_offsets": [0, len(data)]}
    header = json.dumps({"weight": entry}).encode()
    return b"".join((len(header).to_bytes(8, "little"), header, data))


def _data_of(file: bytes | mmap) -> memoryview:
    """The data in a safetensors file."""
    return memoryview(file)[8 + int.from_bytes(file[:8], "little") :]


_QUIET = {"progress": False}

NEWCOMERS = (
    Adapter("lmzip", "lmzip", "lmz", _by_files, ("lmz", {"workers": 1}, {"workers": 1, "overwrite": True})),
    Adapter("glyd max", "glyd", "glyd", _glyd),
    Adapter("z4ai", "z4ai", "z4ai", _z4ai),
    Adapter("bigsmall", "bigsmall", "bigsmall", _by_files, ("bigsmall", {"workers": 1, **_QUIET}, _QUIET)),
)
