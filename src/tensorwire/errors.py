"""The errors of tensorwire.

Every error of bad data says what was expected, what came, where, and what to do; where it happened is also in the
attributes ``file``, ``tensor``, ``block`` and ``byte``, each None where it is not known or does not apply. Bad
arguments stay ValueError and TypeError, and OSError passes through.
"""

from __future__ import annotations

from types import TracebackType

__all__ = [
    "BaseMismatchError",
    "CorruptDataError",
    "DoesNotFit",
    "ErrorContext",
    "FormatError",
    "LimitExceededError",
    "TensorwireError",
    "TruncatedDataError",
    "UnsupportedTensorError",
    "UnsupportedVersionError",
]


class TensorwireError(Exception):
    """Base of all errors that tensorwire defines.

    Args:
        message: what was expected and what came; no position, no full stop.
        file: the file at fault.
        tensor: the name of the tensor at fault.
        block: index of the block at fault within its frame.
        byte: offset of the fault from the start of the frame, or of the file where no frame is at fault.
        advice: what to do about it; by default what the class says.
    """

    _default_advice = ""

    def __init__(
        self,
        message: str,
        *,
        file: object = None,
        tensor: str | None = None,
        block: int | None = None,
        byte: int | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.tensor = tensor
        self.block = block
        self.byte = byte
        self.advice = self._default_advice if advice is None else advice

    def __str__(self) -> str:
        where = []
        if self.file is not None:
            where.append(f"file {str(self.file)!r}")
        if self.tensor is not None:
            where.append(f"tensor {self.tensor!r}")
        if self.block is not None:
            where.append(f"block {self.block}")
        if self.byte is not None:
            where.append(f"byte {self.byte}")
        text = self.message
        if where:
            text += f" ({', '.join(where)})"
        if self.advice:
            text += f"; {self.advice}"
        return text


class FormatError(TensorwireError, ValueError):
    """The data is not a valid frame or file of this format."""


class CorruptDataError(FormatError):
    """The data breaks a rule of the format or fails a checksum."""

    _default_advice = "the data is damaged or not of this format: fetch it again from its source"


class TruncatedDataError(FormatError):
    """The data ends before it should."""

    _default_advice = "the data is incomplete: copy or download it again"


class UnsupportedVersionError(FormatError):
    """The data asks for a version or a feature of the format that this release does not have."""

    _default_advice = "if a newer tensorwire wrote it, upgrade; if an older one did, compress the original again"


class LimitExceededError(FormatError):
    """The data asks for more than a limit of the format, or of the caller, allows."""


class BaseMismatchError(TensorwireError, ValueError):
    """A frame is relative to a base, and the tensor at hand is not that base, or there is none."""

    _default_advice = "give the tensors that it was made against, as they were then"


class DoesNotFit(TensorwireError, ValueError):  # noqa: N818 - it says what happened
    """A frame is larger than the memory that it is to stand in, or than was promised of it."""

    _default_advice = "keep the tensor as it is, or give compress_bound bytes, in which every frame fits"


class UnsupportedTensorError(TensorwireError, TypeError):
    """A tensor or array that cannot be compressed, or a dtype that the framework asked for does not have."""


class ErrorContext:
    """Name the file and the tensor in every TensorwireError that leaves a ``with`` block.

    A name that an inner context has set stays, so the innermost wins::

        with ErrorContext(file=path):
            for name in names:
                with ErrorContext(tensor=name):
                    decode(name)

    A context holds no state of the block: it may be entered again and from several threads.
    """

    __slots__ = ("_file", "_tensor")

    def __init__(self, *, file: object = None, tensor: str | None = None) -> None:
        self._file = file
        self._tensor = tensor

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, TensorwireError):
            if error.file is None:
                error.file = self._file
            if error.tensor is None:
                error.tensor = self._tensor
