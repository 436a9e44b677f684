"""Messages whose every element is right to within a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....codec import compress, decompress, frame_info
from ....errors import CorruptDataError, FormatError, TruncatedDataError
from .exact import Exact

if TYPE_CHECKING:
    from torch import Tensor

_HEAD = np.dtype([("mode", "<u4"), ("rows", "<u4"), ("low", "<f4"), ("step", "<f4"), ("first_nbytes", "<u8")])
_EXACT, _CODES, _REPEATED = 0, 1, 2
_MOST_CODES = 1 << 16


@dataclass(frozen=True)
class Bounded:
    """FP32 elements, each of which is wrong by at most e (1 + 2^-20): steps of 2e from the smallest element on.

    The error-bounded all-to-all of DLRM training (arXiv 2407.04272). The steps travel as a lossless frame of bytes; or,
    if that takes less, the unlike rows of them and the number of each row, since batches ask for the same rows of a
    table again and again. What has no such steps travels losslessly: NaN, infinities, a range of 0, one of more than
    65,536 steps, or one that FP32 cannot keep the bound in.

    Attributes:
        bound: e, or its share of the range (the largest element less the smallest) of each message.
        relative: which of the two `bound` is.
        row: elements of a row that may be repeated.
    """

    bound: float
    relative: bool = False
    row: int = 1
    lossless = False

    def __post_init__(self) -> None:
        if not 0 < self.bound < float("inf"):
            raise ValueError(f"expected a bound above 0, got {self.bound}")
        if self.row < 1:
            raise ValueError(f"expected rows of at least one element, got {self.row}")

    def nbytes(self, numel: int) -> int | None:
        return None

    def encode(self, tensor: Tensor, base: Tensor | None = None, key: int = 0) -> Tensor | None:
        steps = self._steps(tensor.float())
        if steps is None:
            frame = Exact().encode(tensor)
            return None if frame is None else torch.cat([_head(_EXACT, 0, 0.0, 0.0, len(frame)), frame])
        codes, low, step = steps
        numbers = codes.numpy()
        whole = _frame(numbers)
        best = [_head(_CODES, 0, low, step, len(whole)), whole]
        if numbers.size % self.row == 0 and numbers.size > self.row:
            rows, places = np.unique(numbers.reshape(-1, self.row), axis=0, return_inverse=True)
            if 2 * len(rows) <= len(places):
                first, second = _frame(rows), _frame(places.astype(_width(len(rows))).reshape(-1))
                if len(first) + len(second) < len(whole):
                    best = [_head(_REPEATED, len(rows), low, step, len(first)), first, second]
        message = torch.cat(best)
        return message if len(message) < tensor.nbytes else None

    def _steps(self, values: Tensor) -> tuple[Tensor, float, float] | None:
        """Numbers of steps, the smallest value, and the size of a step, if these keep the bound."""
        if not values.numel():
            return None
        low, high = (each.item() for each in values.aminmax())
        error = self.bound * (high - low) if self.relative else self.bound
        if not (0 < error < float("inf")) or not (high - low) / (2 * error) < _MOST_CODES - 1:
            return None
        step = float(np.float32(2 * error))
        if step == 0:
            return None
        codes = ((values - low) / step).round_()
        if ((codes * step + low - values).abs().double() > error * (1 + 2**-20)).any():
            return None
        return codes.to(torch.int32), low, step

    def decode(self, message: Tensor, out: Tensor, base: Tensor | None = None) -> None:
        content = message.numpy()
        if content.size < _HEAD.itemsize:
            raise TruncatedDataError(f"expected at least {_HEAD.itemsize} bytes of {self}, got {content.size}")
        head, body = content[: _HEAD.itemsize].view(_HEAD)[0], content[_HEAD.itemsize :]
        first, second = body[: head["first_nbytes"]], body[head["first_nbytes"] :]
        if head["mode"] == _EXACT:
            Exact().decode(torch.from_numpy(first), out)
            return
        if head["mode"] == _CODES:
            codes = _numbers(first, out.numel())
        elif head["mode"] == _REPEATED:
            rows = _numbers(first, int(head["rows"]) * self.row).reshape(-1, self.row)
            places = _numbers(second, out.numel() // self.row)
            if places.size and (places.max() >= len(rows) or places.size * self.row != out.numel()):
                raise CorruptDataError(f"expected numbers of {len(rows)} rows, got {places.max()}")
            codes = rows[places.astype(np.int64)].reshape(-1)
        else:
            raise CorruptDataError(f"expected a message of mode 0 to 2, got {head['mode']}")
        values = torch.from_numpy(codes.astype(np.float32))
        out.copy_(values.mul_(float(head["step"])).add_(float(head["low"])))


def _head(mode: int, rows: int, low: float, step: float, first_nbytes: int) -> Tensor:
    return torch.from_numpy(np.array([(mode, rows, low, step, first_nbytes)], _HEAD).view(np.uint8))


def _width(count: int) -> type[np.unsignedinteger]:
    """The narrowest type for numbers below `count`."""
    return np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.uint32


def _frame(numbers: np.ndarray) -> Tensor:
    narrow = numbers.astype(_width(int(numbers.max()) + 1)).reshape(-1)
    return torch.frombuffer(bytearray(compress(narrow, threads=torch.get_num_threads())), dtype=torch.uint8)


def _numbers(frame: np.ndarray, count: int) -> np.ndarray:
    """So many numbers, whose width the frame tells; it is checked before memory is taken."""
    info = frame_info(frame.data)
    if info.dtype not in ("U8", "U16", "U32") or info.shape != (count,):
        raise FormatError(f"expected {count} numbers, got a frame of {info.dtype} {info.shape}")
    return decompress(frame.data, threads=torch.get_num_threads())
