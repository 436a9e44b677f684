"""What a kernel says of a frame: a number on the device, which the host reads when it wants to know."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from ....errors import (
    BaseMismatchError,
    CorruptDataError,
    LimitExceededError,
    TruncatedDataError,
    UnsupportedTensorError,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    import torch


class Status(IntEnum):
    """How a frame was read. cuda/status.h has the same numbers."""

    DONE = 0
    CORRUPT = 1
    TRUNCATED = 2
    UNSUPPORTED_VERSION = 3
    LIMIT_EXCEEDED = 4
    ANOTHER_TENSOR = 5
    """The frame is valid, but of another dtype or size than that of its place."""
    BASE_MISMATCH = 6
    HOST_ONLY = 7
    """The frame may be valid, but has blocks that no kernel reads: decode it on the host."""


_ERRORS: dict[Status, tuple[type[Exception], str]] = {
    Status.CORRUPT: (CorruptDataError, "it breaks a rule of the format or fails a checksum"),
    Status.TRUNCATED: (TruncatedDataError, "its memory ends before it does"),
    Status.UNSUPPORTED_VERSION: (UnsupportedVersionError, "its version or a required feature is unknown"),
    Status.LIMIT_EXCEEDED: (LimitExceededError, "it asks for more than a limit of the format allows"),
    Status.ANOTHER_TENSOR: (ValueError, "it has another dtype or size than its place"),
    Status.BASE_MISMATCH: (BaseMismatchError, "the tensor at hand is not its base"),
    Status.HOST_ONLY: (UnsupportedTensorError, "no kernel reads its blocks; decode it on the host"),
}

_NUMBERS = frozenset(Status)


def error_of(number: int, what: str) -> Exception:
    """The error that a number other than 0 means; `what` names the frame."""
    error, text = _ERRORS[Status(number)]
    return error(f"expected {what} to be read, got status {number}: {text}")


def status_of(error: Exception) -> Status:
    """The number of an error of the format, as a kernel would give it."""
    numbers = {kind: status for status, (kind, _) in _ERRORS.items()}
    return next(numbers[kind] for kind in type(error).__mro__ if kind in numbers)


def raise_for(status: torch.Tensor) -> None:
    """Raise the error that the first number other than 0 means. Waits for the device.

    Args:
        status: int32, (count,), as `DevicePages.decode` and `apply_` write it.

    Raises:
        CorruptDataError, TruncatedDataError, UnsupportedVersionError, LimitExceededError, ValueError,
        BaseMismatchError, UnsupportedTensorError: by the number.
    """
    for place, number in enumerate(status.tolist()):
        if number not in _NUMBERS:
            raise ValueError(f"expected numbers of Status, 0 to {max(_NUMBERS)}, got {number}; give the status itself")
        if number:
            raise error_of(number, f"frame {place}")
