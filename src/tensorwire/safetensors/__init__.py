"""The calls of the package ``safetensors``, over plain and compressed files: a program changes its import lines.

They write compressed files, with profile "fast"; `tensorwire.save_file` has the other profiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..checkpoint.tensors.opening import open_as
from ..errors import TensorwireError as SafetensorError
from .backend import check_backend
from .open_file import OpenFile, original_errors

if TYPE_CHECKING:
    import os

__all__ = ["SafetensorError", "safe_open"]

_FRAMEWORKS = {"numpy": "np", "torch": "pt", "pytorch": "pt"}


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
