"""Named tensors to one file, and back."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Any, Literal

    from ..codec import Profile

    Framework = Literal["numpy", "torch"]


def save_file(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    profile: Profile = "fast",
    metadata: Mapping[str, str] | None = None,
    threads: int | None = None,
) -> None:
    """Write named tensors, compressed, to a safetensors file. An existing file is replaced once the new one is whole.

    Args:
        tensors: NumPy arrays or torch tensors.
        metadata: text for the header, as in safetensors.

    Raises:
        UnsupportedTensorError: a tensor cannot be stored (device, layout, dtype).
        ValueError: names collide or are not allowed, metadata is not text, or the header would exceed 100 MB.
        OSError: writing fails; the old file is unchanged.
    """
    raise NotImplementedError


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
        OSError: reading fails.
    """
    raise NotImplementedError


def open_file(path: str | os.PathLike[str], *, framework: Framework = "numpy", threads: int | None = None) -> TensorFile:
    """Open a safetensors file, plain or compressed, to read some of it. Use it in a ``with`` statement."""
    raise NotImplementedError


class TensorFile:
    """An open file; what `open_file` returns. Thread-safe until it is closed."""

    def __enter__(self) -> TensorFile: ...

    def __exit__(self, *error: object) -> None: ...

    def close(self) -> None: ...

    def keys(self) -> list[str]:
        """The original names, in the order of their data."""
        raise NotImplementedError

    def metadata(self) -> dict[str, str]:
        """The text in the header, without our own entries."""
        raise NotImplementedError

    def get_tensor(self, name: str) -> Any:
        """One whole tensor. Raises KeyError for a name that is not there, otherwise as `load_file`."""
        raise NotImplementedError

    def get_slice(self, name: str) -> TensorSlice:
        """One tensor to be indexed: ``f.get_slice(name)[100:200]`` decodes the blocks that these rows touch."""
        raise NotImplementedError


class TensorSlice:
    """A tensor in an open file: index it as the array it is.

    Basic indexing only (integers, slices, ...). The first index selects rows, and only the blocks that hold them are read
    and decoded; further indexes are applied to the decoded rows.

    Attributes:
        dtype: as in safetensors.
        shape: sizes of the dimensions.
    """

    dtype: str
    shape: tuple[int, ...]

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError
