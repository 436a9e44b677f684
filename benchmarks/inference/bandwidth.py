"""How fast memory and disk can be read here, and what a model of the kernels predicts from it."""

from __future__ import annotations

import ctypes
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.clock import load_clock
from benchmarks.timing import pinned, timed
from tensorwire._ground.allocation import new_buffer
from tensorwire.storage.direct import READ_NBYTES as READ_AT_ONCE
from tensorwire.storage.direct import DirectFile
from tensorwire.storage.local import InputFile
from tensorwire.torch import CompressedTensor

READ_NBYTES = 1 << 30
CACHED_ROWS, CACHED_COLUMNS = (512, 2048), 2048
"""Sizes of two matrices that stay in the last-level cache; what a call costs drops out of the difference."""
CORES = (2, 8, 64)
SHARE_OF_A_CORE = 4.0
"""GB/s, where every core of a large socket reads at the same time."""
CHUNK = 8 << 20
ROUNDS = 15


class Memory:
    """A piece of memory that no cache holds, read by the C library's search for a byte that is not there."""

    def __init__(self, nbytes: int = READ_NBYTES) -> None:
        self._memory = torch.ones(nbytes, dtype=torch.uint8)
        self._search = ctypes.CDLL(None).memchr
        self._search.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        self._search.restype = ctypes.c_void_p

    def gbs(self, threads: int) -> float:
        """GB/s of one reading, each thread a part."""
        part = self._memory.numel() // threads
        starts = [self._memory.data_ptr() + index * part for index in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self._read, starts, [0] * threads))  # the threads are there from now on
            seconds, found = timed(lambda: list(pool.map(self._read, starts, [part] * threads)))
        if any(found):
            raise RuntimeError("found a byte that is not there")
        return threads * part / seconds / 1e9

    def _read(self, start: int, nbytes: int) -> int | None:
        found: int | None = self._search(start, 2, nbytes)
        return found


def disk_gbs(path: Path, nbytes: int) -> float:
    """GB/s of reading the first bytes of a file in order, past the page cache, as weights are read that stay in it."""
    with InputFile(path) as opened:
        file, memory, total = DirectFile(opened), new_buffer(READ_AT_ONCE), min(nbytes, opened.nbytes)

        def read() -> None:
            for start in range(0, total, READ_AT_ONCE):
                file.read(start, min(READ_AT_ONCE, total - start), memory)

        seconds, _ = timed(read)
    return total / seconds / 1e9


def cycles_a_word(profile: str) -> dict[str, float]:
    """Cycles of a fused product on one core with a matrix in the cache, and the bytes of a compressed word."""
    small, large = (_weight(rows, profile) for rows in CACHED_ROWS)
    x = torch.ones(1, CACHED_COLUMNS, dtype=torch.bfloat16)
    words = large.numel() - small.numel()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder, pinned(1):
        clock = load_clock(Path(folder))
        for _ in range(ROUNDS):
            hz = clock()
            pairs = [(_product_seconds(x, large), _product_seconds(x, small)) for _ in range(5)]
            longer, shorter = map(min, zip(*pairs, strict=True))
            found.append(((longer - shorter) * hz / words, hz))
    torch.set_num_threads(threads)
    cycles, hz = sorted(found)[len(found) // 2]
    return {"cycles": cycles, "hz": hz, "nbytes": large.frame.numel() / large.numel()}


def _weight(rows: int, profile: str) -> CompressedTensor:
    generator = torch.Generator().manual_seed(0)
    dense = (0.02 * torch.randn(rows, CACHED_COLUMNS, generator=generator)).to(torch.bfloat16)
    return CompressedTensor.from_dense(dense, profile, linear_mode="fused")


def _product_seconds(x: torch.Tensor, weight: CompressedTensor) -> float:
    return timed(torch.nn.functional.linear, x, weight)[0]


def predicted(kernel: dict[str, float], cores: int, read_gbs: float) -> float:
    """Time of a fused product over that of a dense one which reads its weights at `read_gbs`."""
    read = kernel["nbytes"] / (read_gbs * 1e9)
    computed = kernel["cycles"] / (cores * kernel["hz"])
    return max(read, computed) / (2 / (read_gbs * 1e9))


def predictions(kernel: dict[str, float], read_gbs: float) -> list[dict[str, Any]]:
    """For some numbers of cores: at the bandwidth measured here, and where each core has its share of a socket's."""
    return [
        {
            "cores": cores,
            "here": predicted(kernel, cores, read_gbs),
            "socket": predicted(kernel, cores, SHARE_OF_A_CORE * cores),
        }
        for cores in CORES
    ]
