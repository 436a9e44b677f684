"""What all calls of safetensors read a file with: `safe_open` and `deserialize`, which read compressed ones too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from typing import Any

from safetensors import SafetensorError

from ..._ground.copies import not_copied
from ...checkpoint import open_file
from ...errors import BaseMismatchError, TensorwireError
from ...safetensors import safe_open
from ...storage.spool import SpoolFile, is_spooled
from .look import NO_BASE, header_in, is_ours

_Kinds = tuple[type[Exception], ...]


@contextmanager
def _their_errors(kinds: _Kinds = (TensorwireError, KeyError, ValueError)) -> Iterator[None]:
    """Programs catch the errors of safetensors. OSError is one of them."""
    try:
        yield
    except kinds as error:
        if isinstance(error, BaseMismatchError):
            error.advice = NO_BASE
        if isinstance(error, TensorwireError) and is_spooled(error.file):
            error.file = None
        text = error.args[0] if isinstance(error, KeyError) else error
        raise SafetensorError(str(text)) from error


class CompressedFile:
    """What `safe_open` gives of a compressed file: tensors as they were before it was compressed. Thread-safe."""

    __reduce_ex__ = not_copied("an open file", "open it again by its path")

    def __init__(self, filename: Any, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> None:
        with _their_errors():
            self._reader = safe_open(filename, framework, device, backend=backend)
        self._is_closed = False
        # An index that does not fit is the framework's own error under torch, one of safetensors' under NumPy.
        is_torch = framework in ("pt", "torch", "pytorch")
        self.kinds_of_index: _Kinds = (TensorwireError,) if is_torch else (TensorwireError, IndexError, ValueError)

    def __enter__(self) -> CompressedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.close()
        self._is_closed = True

    def opened(self) -> Any:
        """What reads the file, which must not be closed."""
        if self._is_closed:
            raise SafetensorError("File is closed")
        return self._reader

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return self.opened().keys()  # type: ignore[no-any-return]

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their data."""
        return self.opened().offset_keys()  # type: ignore[no-any-return]

    def metadata(self) -> dict[str, str] | None:
        """The text in the header that is not tensorwire's."""
        return self.opened().metadata()  # type: ignore[no-any-return]

    def get_tensor(self, name: str) -> Any:
        """A whole tensor, checked."""
        with _their_errors():
            return self.opened().get_tensor(name)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, checked."""
        with _their_errors():
            return self.opened().get_tensors()  # type: ignore[no-any-return]

    def get_slice(self, name: str) -> CompressedSlice:
        """A tensor to be indexed."""
        with _their_errors():
            return CompressedSlice(self, self.opened().get_slice(name))


class CompressedSlice:
    """A tensor of a compressed file, of which an index decodes the rows that it selects."""

    __reduce_ex__ = not_copied("an open file", "copy what an index gives")

    def __init__(self, file: CompressedFile, tensor: Any) -> None:
        self._file = file
        self._tensor = tensor
        self.get_shape: Callable[[], list[int]] = tensor.get_shape
        self.get_dtype: Callable[[], str] = tensor.get_dtype

    def __getitem__(self, index: Any) -> Any:
        self._file.opened()
        with _their_errors(self._file.kinds_of_index):
            return self._tensor[index]


def opening(theirs: Any, is_on: Callable[[], bool]) -> type:
    """A class in the place of `safe_open`: calling it gives theirs, or a `CompressedFile`."""
    kinds = (CompressedFile, theirs) if isinstance(theirs, type) else CompressedFile

    class Kind(type):
        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            if is_on() and is_ours(arguments[0] if arguments else options.get("filename")):
                return CompressedFile(*arguments, **options)
            return theirs(*arguments, **options)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, kinds)

        def __getattr__(cls, name: str) -> Any:
            return getattr(theirs, name)

    return Kind("safe_open", (), {"__doc__": theirs.__doc__, "__module__": __name__})


def deserializing(theirs: Callable[..., Any], is_on: Callable[[], bool]) -> Callable[..., Any]:
    """`deserialize`, which the calls named `load` read bytes with. Compressed ones pass through a temporary file."""

    @wraps(theirs)
    def deserialize(data: Any, *arguments: Any, **options: Any) -> Any:
        if not (
            is_on() and isinstance(data, bytes) and header_in(lambda offset, nbytes: data[offset : offset + nbytes])
        ):
            return theirs(data, *arguments, **options)
        with closing(SpoolFile()) as file:
            file.write(0, data)
            if not is_ours(file.location):
                return theirs(data, *arguments, **options)
            with _their_errors(), open_file(file.location, framework="bytes") as reader:
                tensors = reader.get_tensors()
                slices = {name: reader.get_slice(name) for name in tensors}
        return [
            (name, {"shape": slices[name].get_shape(), "dtype": slices[name].get_dtype(), "data": bytearray(content)})
            for name, content in tensors.items()
        ]

    return deserialize
