"""All that torch chooses the kernel of a product by."""

from __future__ import annotations

import enum
import functools
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Strides(enum.Enum):
    """How inputs lie in memory.

    APART are single inputs that do not lie one behind the other, such as the last position of each prompt: torch makes
    one product for each of them, so how far apart they lie is not asked for.
    """

    USUAL = enum.auto()
    APART = enum.auto()
    OTHER = enum.auto()


@functools.lru_cache(maxsize=4096)
def strides_of(shape: Sequence[int], strides: Sequence[int]) -> Strides:
    """USUAL is that of a new tensor."""
    if strides == tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))):
        return Strides.USUAL
    apart = len(shape) == 3 and shape[1] == strides[2] == 1 and shape[2] <= strides[0] != strides[1]
    return Strides.APART if apart else Strides.OTHER


class ProductKind(NamedTuple):
    """All that torch may choose a kernel by, and in that kernel an order of summation: the values are not among it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: Strides
    rows: int
    bias: bool
    threads: int
    flushes: bool
    settings: tuple[object, ...]

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def num_inputs(self) -> int:
        return math.prod(self.shape[:-1])


def kind_of(x: Tensor, rows: int, bias: Tensor | None) -> ProductKind:
    kind, threads = strides_of(x.shape, x.stride()), torch.get_num_threads()
    return ProductKind(x.dtype, x.shape, kind, rows, bias is not None, threads, flushes_denormals(), _settings())


_allows_f16_sums = getattr(torch._C, "_get_cpu_allow_fp16_reduced_precision_reduction", lambda: None)


def _settings() -> tuple[object, ...]:
    """What torch chooses a kernel by, for a product on the CPU. Its other settings are for other devices.

    From torch 2.9 on the precision of oneDNN's products counts, whichever call has set it. The older
    `get_float32_matmul_precision` cannot be asked there: it raises once any device has a precision that it cannot name.
    """
    onednn = torch.backends.mkldnn
    products = getattr(onednn, "matmul", None)
    precision = torch.get_float32_matmul_precision() if products is None else products.fp32_precision
    deterministic = torch.are_deterministic_algorithms_enabled(), getattr(onednn, "deterministic", None)
    return onednn.enabled, precision, *deterministic, _allows_f16_sums()


_least_normal = sys.float_info.min


def flushes_denormals() -> bool:
    """Whether this thread does. `torch.set_flush_denormal` is for one thread alone, and nothing tells what it set."""
    return _least_normal / 2 == 0
