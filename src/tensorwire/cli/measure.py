"""The measurements of ``tensorwire bench``: samples of a checkpoint, each codec on them, and the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from .._ground.allocation import new_buffer
from ..checkpoint import open_file
from ..codec import dtype_bits

if TYPE_CHECKING:
    from .peers import Adapter

SAMPLE_NBYTES = 64 << 20
_MIN_SHARE = 0.01
"""Share of the largest sample. Dtypes with less are left out: a few position ids would double the table."""
_MIN_RUNS = 3
_MAX_RUNS = 20
_MIN_SECONDS = 0.5
_SLOW_SECONDS = 1.0


@dataclass(frozen=True)
class Sample:
    """The first SAMPLE_NBYTES of all tensors of one dtype."""

    dtype: str
    data: memoryview


@dataclass(frozen=True)
class Measurement:
    """One codec on one sample.

    Attributes:
        dtype, nbytes: of the sample.
        compress_seconds, decompress_seconds: medians; one thread.
        error: why there are no figures, or that the result was wrong; None if all is well.
    """

    dtype: str
    nbytes: int
    codec: str
    version: str
    compressed_nbytes: int | None = None
    compress_seconds: float | None = None
    decompress_seconds: float | None = None
    error: str | None = None

    @property
    def ratio(self) -> float | None:
        return None if not self.compressed_nbytes else self.nbytes / self.compressed_nbytes


def samples(path: Path) -> list[Sample]:
    """A sample for each dtype of a checkpoint, in the order in which the dtypes turn up."""
    parts: dict[str, list[Any]] = {}
    sizes: dict[str, int] = {}
    for dtype, data in _tensors(path, sizes):
        parts.setdefault(dtype, []).append(data)
        sizes[dtype] = sizes.get(dtype, 0) + len(data)
    least = _MIN_SHARE * max(sizes.values(), default=0)
    return [Sample(dtype, _joined(chunks, sizes[dtype])) for dtype, chunks in parts.items() if sizes[dtype] > least]


def synthetic() -> list[Sample]:
    """BF16 weights: normal, each row with a log-normal scale; seed 0."""
    rows, columns = SAMPLE_NBYTES // 2 // 4096, 4096
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((rows, columns), dtype=np.float32)
    weights *= (0.02 * np.exp(0.3 * generator.standard_normal((rows, 1)))).astype(np.float32)
    rounded = weights.astype(ml_dtypes.bfloat16)
    return [Sample("BF16", _joined([rounded.reshape(-1).view(np.uint8)], SAMPLE_NBYTES))]


def measure(adapter: Adapter, sample: Sample) -> Measurement:
    """Check a round trip, then time both directions in reused, page-aligned memory."""
    what = (sample.dtype, len(sample.data), adapter.name, adapter.version)
    try:
        codec = adapter.make(sample.dtype)
        out = new_buffer(len(sample.data))
        packed, first_compress = _timed(codec.compress, codec.prepare(sample.data))
        result, first_decompress = _timed(codec.decompress, packed, out)
        if not np.array_equal(np.frombuffer(result, np.uint8), np.frombuffer(sample.data, np.uint8)):
            return Measurement(*what, error="wrong result")
        nbytes = len(packed)
        decompress_seconds = _median(first_decompress, lambda: _timed(codec.decompress, packed, out)[1])
        compress_seconds = _median(first_compress, lambda: _timed(codec.compress, codec.prepare(sample.data))[1])
    except Exception as error:  # what a peer raises is its own business
        return Measurement(*what, error=f"{type(error).__name__}: {error}".splitlines()[0])
    return Measurement(*what, nbytes, compress_seconds, decompress_seconds)


def _timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - start


def _median(first: float, timed: Callable[[], float]) -> float:
    """Seconds of a run. The first one warms up, and counts only if it was so slow that more would take too long."""
    if first > _SLOW_SECONDS:
        return first
    times: list[float] = []
    while len(times) < _MIN_RUNS or (len(times) < _MAX_RUNS and sum(times) < _MIN_SECONDS):
        times.append(timed())
    return statistics.median(times)


def _joined(chunks: list[Any], nbytes: int) -> memoryview:
    buffer = new_buffer(nbytes)
    np.concatenate(chunks, out=np.frombuffer(buffer, np.uint8))
    return buffer


def _tensors(path: Path, sizes: dict[str, int]) -> Iterator[tuple[str, Any]]:
    """(dtype, bytes) of each tensor, or of its first rows where `sizes` nears the end of the sample."""
    files = sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{str(path)!r} holds no .safetensors file")
    for name in files:
        with open_file(name, "bytes") as file:
            for key in file.offset_keys():
                tensor = file.get_slice(key)
                dtype, shape = tensor.get_dtype(), tensor.get_shape()
                rows = _rows_within(dtype, shape, SAMPLE_NBYTES - sizes.get(dtype, 0))
                if rows:
                    yield dtype, np.frombuffer(tensor[:rows] if shape else tensor[()], np.uint8)


def _rows_within(dtype: str, shape: Sequence[int], nbytes: int) -> int:
    bits = dtype_bits(dtype)
    if bits < 8:
        return 0  # narrower than a byte, or unknown: no codec but ours takes it
    row_nbytes = bits // 8 * prod(shape[1:])
    return min(shape[0] if shape else 1, nbytes // row_nbytes) if row_nbytes else 0
