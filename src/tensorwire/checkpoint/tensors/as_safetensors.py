"""`safe_open`, an open file whose errors are those of the package safetensors: programs catch its one class."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import TensorwireError
from .opening import open_as
from .tensor_reader import TensorReader
from .tensor_slice import TensorSlice

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_FRAMEWORKS = {"numpy": "np", "torch": "pt", "pytorch": "pt"}


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
            return self._sliced(OpenSlice, name)


class OpenSlice(TensorSlice[Any]):
    """`tensorwire.TensorSlice` with the errors of the original."""

    def __getitem__(self, index: Any) -> Any:
        with original_errors():
            return super().__getitem__(index)


def safe_open(
    filename: str | os.PathLike[str], framework: str, device: Any = "cpu", *, backend: str = "mmap"
) -> OpenFile:
    """Open a file to read some of its tensors: `tensorwire.open_file` under the name of safetensors' own function.

    What is a SafetensorError of the original is one here, and stays what `open_file` raises.

    Args:
        framework: "pt" or "np", or another name that safetensors has for these two.
        device: of torch tensors.
        backend: "mmap" or "pread", as safetensors has them; the file is read alike.

    Raises:
        SafetensorError: the file is damaged; it is `tensorwire.TensorwireError`. Or there is no such framework, device
            or backend; it is a ValueError too. From the reader: there is no tensor of a name, or no such row; it is a
            KeyError or an IndexError too. Or the reader is closed; it is a ValueError too.
        OSError: the file cannot be read.
    """
    with original_errors():
        check_backend(backend)
        return open_as(OpenFile, filename, _FRAMEWORKS.get(framework, framework), device)  # type: ignore[arg-type]


def check_backend(backend: str) -> None:
    """Raise ValueError for a way to read that safetensors does not have; all files are read alike."""
    if backend not in ("mmap", "pread"):
        raise ValueError(f'expected backend "mmap" or "pread", got {backend!r}')
