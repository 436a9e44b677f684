"""Named tensors to one file, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..._destination import Destination
from ...codec import as_array, check_framework, num_threads, tensor_view
from ...errors import ErrorContext
from ..directory.sources import absolute
from ..file.header import METADATA_KEY, TensorEntry, check_name
from ..file.loader import load_bytes, load_range
from ..file.names import METADATA_PREFIX, shown
from ..file.reader import StoredFile
from ..file.writer import CompressedWriter, check_names
from ..storage.files import OutputFile
from ..storage.pipeline import WINDOW_NBYTES
from ..storage.staging import Staging

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from ...codec import Profile
    from ..file.reader import StoredTensor

Framework = Literal["numpy", "torch"]


def save_file(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    profile: Profile = "fast",
    metadata: Mapping[str, str] | None = None,
    threads: int | None = None,
) -> None:
    """Write named tensors, compressed, to a safetensors file.

    As with safetensors' own function, a file that stands there is replaced without a question; here once the new one is
    whole, which gets the permissions of the old one. Only a regular file is replaced: never a directory, a link, a
    device or a pipe.

    Args:
        tensors: NumPy arrays or torch tensors.
        metadata: text for the header, as in safetensors.

    Raises:
        UnsupportedTensorError: a tensor cannot be stored (device, layout, dtype).
        ValueError: names collide or are not allowed, metadata is not text, or the header would exceed 100 MB.
        FileExistsError: something stands at `path` that is not a regular file.
        BlockingIOError: another process is writing the same `path`.
        OSError: writing fails; the old file is unchanged.
    """
    metadata = dict(metadata or {})
    _check_metadata(metadata)
    views = []
    entries = []
    for name, tensor in tensors.items():
        _check_tensor_name(name)
        with ErrorContext(tensor=name):
            view = tensor_view(tensor)
            views.append(view)
            entries.append(TensorEntry(name, view.dtype, view.shape, 0, len(view.data)))
    check_names(entries)

    def read(index: int, start: int, out: memoryview) -> None:
        out[:] = views[index].data[start : start + len(out)]

    with (
        Staging(Destination(absolute(path), force=True), {"action": "save"}) as work,
        OutputFile(work.result, work.access_of_standing()) as file,
        CompressedWriter(file, entries, metadata, profile=profile, threads=threads) as writer,
    ):
        for index, view in enumerate(views):
            for start in range(0, len(view.data) or 1, WINDOW_NBYTES):
                writer.put(index, start, view.data[start : start + WINDOW_NBYTES])
        writer.finish(read)
        file.sync()
        work.commit(None)


def load_file(
    path: str | os.PathLike[str],
    *,
    framework: Framework = "numpy",
    threads: int | None = None,
    verify: bool = True,
) -> dict[str, Any]:
    """Read all tensors of a safetensors file, plain or compressed.

    Args:
        framework: "numpy" (ml_dtypes for dtypes that NumPy lacks) or "torch" (CPU tensors).
        threads: by default all usable cores.
        verify: check the checksums of the data. Those of the headers are always checked.

    Returns:
        The tensors by their original names, in the order of their data. They are writable.

    Raises:
        FormatError: the file is damaged.
        UnsupportedTensorError: the framework lacks a dtype.
        OSError: reading fails; IsADirectoryError if `path` is a directory.
    """
    with StoredFile(absolute(path)) as stored:
        return _load(stored, list(stored.tensors.values()), framework, threads, verify)


def open_file(
    path: str | os.PathLike[str], *, framework: Framework = "numpy", threads: int | None = None
) -> TensorFile:
    """Open a safetensors file, plain or compressed, to read some of it. Use it in a ``with`` statement.

    Raises:
        FormatError: the header of the file is damaged.
        OSError: it cannot be read.
    """
    _check_framework_name(framework)
    return TensorFile(StoredFile(absolute(path)), framework, num_threads(threads))


class TensorFile:
    """An open file; what `open_file` returns. Thread-safe until it is closed."""

    def __init__(self, stored: StoredFile, framework: Framework, threads: int) -> None:
        self._stored = stored
        self._framework: Framework = framework
        self._threads = threads

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._stored.close()

    def keys(self) -> list[str]:
        """The original names, in the order of their data."""
        return list(self._stored.tensors)

    def metadata(self) -> dict[str, str]:
        """The text in the header, without our own entries."""
        return dict(self._stored.metadata)

    def get_tensor(self, name: str) -> Any:
        """One whole tensor. Raises KeyError for a name that is not there, otherwise as `load_file`."""
        tensor = self._stored.tensors[name]
        return _load(self._stored, [tensor], self._framework, self._threads, True)[name]

    def get_slice(self, name: str) -> TensorSlice:
        """One tensor to be indexed: ``f.get_slice(name)[100:200]`` decodes the blocks that these rows touch."""
        return TensorSlice(self._stored, self._stored.tensors[name], self._framework, self._threads)


class TensorSlice:
    """A tensor in an open file: index it as the array it is.

    Basic indexing only (integers, slices, ...). The first index selects rows, and only the blocks that hold them are
    read and decoded; further indexes are applied to the decoded rows.

    Attributes:
        dtype: as in safetensors.
        shape: sizes of the dimensions.
    """

    def __init__(self, stored: StoredFile, tensor: StoredTensor, framework: Framework, threads: int) -> None:
        self.dtype, self.shape, self._nbytes = stored.layout(tensor.name)
        with ErrorContext(file=stored.path, tensor=tensor.name):
            check_framework(self.dtype, framework)
        self._stored = stored
        self._tensor = tensor
        self._framework = framework
        self._threads = threads

    def __getitem__(self, index: Any) -> Any:
        items = _expand(index, len(self.shape))
        if not self.shape:
            return self._rows(0, 1, ())
        items = items or [slice(None)]
        size = self.shape[0]
        if isinstance(items[0], slice):
            rows = range(size)[items[0]]
        else:
            row = range(size)[items[0]]
            rows = range(row, row + 1)
        if not rows:
            items[0] = slice(None)
            return self._rows(0, 0, (0, *self.shape[1:]))[tuple(items)]
        first, last = min(rows[0], rows[-1]), max(rows[0], rows[-1])
        decoded = self._rows(first, last + 1, (last + 1 - first, *self.shape[1:]))
        if not isinstance(items[0], slice):
            items[0] = 0
            return decoded[tuple(items)]
        stop = rows[-1] - first + rows.step
        items[0] = slice(rows[0] - first, stop if stop >= 0 else None, rows.step)
        return decoded[tuple(items)]

    def _rows(self, start: int, stop: int, shape: tuple[int, ...]) -> Any:
        row_nbytes = self._nbytes // self.shape[0] if self.shape and self.shape[0] else self._nbytes
        with ErrorContext(file=self._stored.path, tensor=self._tensor.name):
            data = load_range(self._stored, self._tensor, start * row_nbytes, stop * row_nbytes, self._threads)
            return as_array(data, self.dtype, shape, self._framework)


def _expand(index: Any, ndim: int) -> list[Any]:
    """An index as one item for each of the first dimensions it speaks of; the ellipsis becomes full slices."""
    items = list(index) if isinstance(index, tuple) else [index]
    for item in items:
        if not (item is Ellipsis or isinstance(item, slice) or hasattr(item, "__index__")):
            raise TypeError(f"expected integers, slices or an ellipsis as indexes, got {type(item).__name__}")
    given = sum(item is not Ellipsis for item in items)
    if given > ndim or len(items) - given > 1:
        raise IndexError(f"expected at most {ndim} indexes and one ellipsis, got {len(items)}")
    for position, item in enumerate(items):
        if item is Ellipsis:
            items[position : position + 1] = [slice(None)] * (ndim - given)
            break
    return items


def _load(
    stored: StoredFile, tensors: list[StoredTensor], framework: Framework, threads: int | None, verify: bool
) -> dict[str, Any]:
    _check_framework_name(framework)
    layouts = []
    for tensor in tensors:
        dtype, shape, nbytes = stored.layout(tensor.name)
        with ErrorContext(file=stored.path, tensor=tensor.name):
            check_framework(dtype, framework)
        layouts.append((tensor.name, dtype, shape, nbytes))
    datas = load_bytes(stored, tensors, [layout[3] for layout in layouts], num_threads(threads), verify)
    return {
        name: as_array(data, dtype, shape, framework)
        for (name, dtype, shape, _), data in zip(layouts, datas, strict=True)
    }


def _check_framework_name(framework: str) -> None:
    if framework not in ("numpy", "torch"):
        raise ValueError(f'expected framework "numpy" or "torch", got {framework!r}')


def _check_tensor_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"expected names that are str, got {type(name).__name__}")
    if name == METADATA_KEY:
        raise ValueError(f"no tensor can be called {METADATA_KEY}: in a safetensors file that is the metadata")
    check_name(name)


def _check_metadata(metadata: dict[str, str]) -> None:
    for key, text in metadata.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise ValueError(f"expected metadata of str to str, got {type(key).__name__} to {type(text).__name__}")
        if key.startswith(METADATA_PREFIX):
            raise ValueError(
                f"metadata keys that begin with {METADATA_PREFIX!r} are kept for tensorwire, got {shown(key)}"
            )
