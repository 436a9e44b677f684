"""An open file whose errors are those of the original: programs catch its one class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..checkpoint import TensorReader, TensorSlice
from ..errors import TensorwireError


class _NoTensorError(TensorwireError, KeyError):
    """There is no tensor of a name."""


class _NoRowError(TensorwireError, IndexError):
    """An index is none, or leads out of a tensor."""


class _NoValueError(TensorwireError, ValueError):
    """An argument has no value that it can have, or a file is closed."""


_KINDS = {KeyError: _NoTensorError, IndexError: _NoRowError, ValueError: _NoValueError}


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise as a TensorwireError, too, what is a SafetensorError of the original."""
    try:
        yield
    except TensorwireError:
        raise
    except (KeyError, IndexError, ValueError) as error:
        kind = next(found for each, found in _KINDS.items() if isinstance(error, each))
        raise kind(str(error.args[0])) from error


class OpenFile(TensorReader[Any]):
    """`tensorwire.TensorReader` with the errors of the original; once it is closed, nothing of it is to be had."""

    _is_closed = False

    def close(self) -> None:
        super().close()
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise _NoValueError("the file is closed: use it inside its with statement", file=self.files[0].path)

    def keys(self) -> list[str]:
        self._check_open()
        return super().keys()

    def offset_keys(self) -> list[str]:
        self._check_open()
        return super().offset_keys()

    def metadata(self) -> dict[str, str] | None:
        self._check_open()
        return super().metadata()

    def get_tensor(self, name: str) -> Any:
        self._check_open()
        with original_errors():
            return super().get_tensor(name)

    def get_tensors(self, *, verify: bool = True) -> dict[str, Any]:
        self._check_open()
        return super().get_tensors(verify=verify)

    def get_slice(self, name: str) -> OpenSlice:
        self._check_open()
        with original_errors():
            stored, tensor = self._place(name)
            return OpenSlice(stored, tensor, self._target, self._threads, verify=self._verify is not False)


class OpenSlice(TensorSlice[Any]):
    """`tensorwire.TensorSlice` with the errors of the original."""

    def __getitem__(self, index: Any) -> Any:
        with original_errors():
            return super().__getitem__(index)
