"""What all calls of safetensors read a file with: `safe_open` and `deserialize`, which read compressed ones too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from typing import Any

from safetensors import SafetensorError

from ..._ground.copies import not_copied
from ...checkpoint import open_file
from ...checkpoint.tensors.as_safetensors import safe_open
from ...errors import BaseMismatchError, TensorwireError
from ...files.names import GIVE_BASE
from ...storage.spool import SpoolFile, is_spooled
from .look import NO_BASE, header_in, is_ours


@contextmanager
def _their_errors(*own: type[Exception]) -> Iterator[None]:
    """Programs catch the error of safetensors. Errors of these kinds are raised as they are; OSError is, too."""
    try:
        yield
    except TensorwireError as error:
        if isinstance(error, own):
            raise
        if isinstance(error, BaseMismatchError) and error.advice == GIVE_BASE:
            error.advice = NO_BASE
        if is_spooled(error.file):
            error.file = None
        raise SafetensorError(str(error)) from error


class CompressedFile:
    """What `safe_open` gives of a compressed file: tensors as they were before it was compressed. Thread-safe."""

    __reduce_ex__ = not_copied("an open file", "open it again by its path")

    def __init__(self, filename: Any, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> None:
        with _their_errors():
            self._reader: Any = safe_open(filename, framework, device, backend=backend)
        self._is_torch = framework in ("pt", "torch", "pytorch")

    def __repr__(self) -> str:
        return repr(self._reader)

    def __enter__(self) -> CompressedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.close()

    @_their_errors()
    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return self._reader.keys()  # type: ignore[no-any-return]

    @_their_errors()
    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their data."""
        return self._reader.offset_keys()  # type: ignore[no-any-return]

    @_their_errors()
    def metadata(self) -> dict[str, str] | None:
        """The text in the header that is not tensorwire's."""
        return self._reader.metadata()  # type: ignore[no-any-return]

    @_their_errors()
    def get_tensor(self, name: str) -> Any:
        """A whole tensor, checked."""
        return self._reader.get_tensor(name)

    @_their_errors()
    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, checked."""
        return self._reader.get_tensors()  # type: ignore[no-any-return]

    @_their_errors()
    def get_slice(self, name: str) -> CompressedSlice:
        """A tensor to be indexed. For an index that leads out of it torch has an error of its own, NumPy has not."""
        return CompressedSlice(self._reader.get_slice(name), *([IndexError] if self._is_torch else []))


class CompressedSlice:
    """A tensor of a compressed file, of which an index decodes the rows that it selects."""

    __reduce_ex__ = not_copied("an open file", "copy what an index gives")

    def __init__(self, tensor: Any, *own: type[Exception]) -> None:
        self._tensor = tensor
        self._own = own
        self.get_shape: Callable[[], list[int]] = tensor.get_shape
        self.get_dtype: Callable[[], str] = tensor.get_dtype

    def __repr__(self) -> str:
        return repr(self._tensor)

    def __getitem__(self, index: Any) -> Any:
        with _their_errors(*self._own):
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
