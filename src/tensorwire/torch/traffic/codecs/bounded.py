"""Messages whose every element is right to within a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....codec import check_frame_size, compress, decompress, frame_info
from ....errors import CorruptDataError, FormatError, TruncatedDataError
from ..arguments import expect_integer, expect_number

if TYPE_CHECKING:
    from torch import Tensor

# `first_nbytes` and `rows` tell of the first frame: its length, and how many unlike rows it has. It has 0 rows if it
# has the steps of all elements.
_HEAD = np.dtype([("first_nbytes", "<u8"), ("rows", "<u4"), ("low", "<f4"), ("step", "<f4")])
_MOST_CODES = 1 << 16


@dataclass(frozen=True)
class Bounded:
    """FP32 elements, each of which is wrong by at most e (1 + 2^-20): steps of nearly 2e from the smallest element on.

    The error-bounded all-to-all of DLRM training (arXiv 2407.04272). The steps travel entropy-coded, as a lossless
    frame; or, if that takes less, the unlike rows of them and the number of each row, since batches ask for the same
    rows of a table again and again. What has no such steps travels as it is: NaN, infinities, more than 65,536 steps,
    numbers so far from 0 that FP32 cannot keep the bound, a range of 0 with a relative bound, and all that is not FP32.

    Attributes:
        bound: e, or its share of the range (the largest element less the smallest) of each message.
        relative: which of the two `bound` is.
        row: elements of a row that may be repeated; 1 if no rows are looked for.
    """

    bound: float
    relative: bool = False
    row: int = 1
    lossless = False

    def __post_init__(self) -> None:
        expect_number("bound", self.bound)
        expect_integer("row", self.row)
        if not 0 < self.bound < float("inf"):
            raise ValueError(f"expected a bound above 0, got {self.bound}")
        if self.row < 1:
            raise ValueError(f"expected rows of at least one element, got {self.row}")

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor | None:
        steps = self._steps(tensor)
        if steps is None:
            return None
        codes, low, step = steps
        numbers = _narrow(codes.numpy())
        whole = _frame(numbers)
        best = [_head(len(whole), 0, low, step), whole]
        if self.row > 1 and numbers.size % self.row == 0:
            rows, places = np.unique(numbers.view(f"V{self.row * numbers.itemsize}"), return_inverse=True)
            if 2 * len(rows) <= len(places):
                first, second = _frame(rows.view(numbers.dtype)), _frame(_narrow(places))
                if len(first) + len(second) < len(whole):
                    best = [_head(len(first), len(rows), low, step), first, second]
        message = torch.cat(best)
        return message if len(message) < tensor.nbytes else None

    def _steps(self, values: Tensor) -> tuple[Tensor, float, float] | None:
        """Numbers of steps, the smallest value, and the size of a step, if these keep the bound."""
        if values.dtype != torch.float32 or not values.numel():
            return None
        low, high = (each.item() for each in values.aminmax())
        error = self.bound * (high - low) if self.relative else self.bound
        # The room that FP32 needs: its rounding, here and in the decoder, is wrong by at most 7 parts in 2^24.
        step = 2 * (error - 2**-21 * max(-low, high))
        if not 0 < step < torch.finfo(torch.float32).max or not (high - low) / step < _MOST_CODES - 1:
            return None  # so it is with NaN, too
        step = float(np.float32(step))
        codes = ((values - low) / step).round_()
        errors = (codes * step + low).double().sub_(values).abs_()
        if not (errors <= error * (1 + 2**-20)).all():
            return None
        return codes.to(torch.int32), low, step

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        content = message.numpy()
        if content.size < _HEAD.itemsize:
            raise TruncatedDataError(f"expected at least {_HEAD.itemsize} bytes of {self}, got {content.size}")
        first_nbytes, num_rows, low, step = (each.item() for each in content[: _HEAD.itemsize].view(_HEAD)[0])
        body = content[_HEAD.itemsize :]
        first, second = body[:first_nbytes], body[first_nbytes:]
        if num_rows == 0:
            if second.size:
                raise CorruptDataError(f"expected a frame of {first_nbytes} bytes, got {body.size}")
            codes = _numbers(first, out.numel())
        else:
            codes = self._repeated(first, second, num_rows, out.numel())
        values = torch.from_numpy(codes.astype(np.float32))
        out.copy_(values.mul_(step).add_(low))

    def _repeated(self, first: np.ndarray, second: np.ndarray, num_rows: int, numel: int) -> np.ndarray:
        count = numel // self.row
        if numel % self.row or num_rows > count:
            raise CorruptDataError(f"expected up to {count} rows of {self} for {numel} elements, got {num_rows}")
        rows = _numbers(first, num_rows * self.row).reshape(num_rows, self.row)
        places = _numbers(second, count)
        if places.max() >= num_rows:
            raise CorruptDataError(f"expected numbers of {num_rows} rows, got {places.max()}")
        codes: np.ndarray = rows[places].reshape(-1)
        return codes


def _head(first_nbytes: int, rows: int, low: float, step: float) -> Tensor:
    return torch.from_numpy(np.array([(first_nbytes, rows, low, step)], _HEAD).view(np.uint8))


def _narrow(numbers: np.ndarray) -> np.ndarray:
    """In the narrowest type."""
    return numbers.astype(np.min_scalar_type(numbers.max()))


def _frame(numbers: np.ndarray) -> Tensor:
    """With the entropy coder: few of the numbers are frequent."""
    frame = compress(numbers, profile="compact", threads=torch.get_num_threads())
    return torch.frombuffer(bytearray(frame), dtype=torch.uint8)


def _numbers(frame: np.ndarray, count: int) -> np.ndarray:
    """So many numbers, whose width the frame tells; it is checked before memory is taken."""
    info = frame_info(frame.data)
    check_frame_size(info, frame.nbytes)
    if info.dtype not in ("U8", "U16", "U32") or info.shape != (count,):
        raise FormatError(f"expected {count} numbers, got a frame of {info.dtype} {info.shape}")
    numbers: np.ndarray = decompress(frame.data, threads=torch.get_num_threads())
    return numbers
