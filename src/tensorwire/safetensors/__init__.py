"""The calls of the package ``safetensors``, over plain and compressed files: a program changes its import lines.

They write compressed files, with profile "fast"; `tensorwire.save_file` has the other profiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..checkpoint import open_file
from ..errors import TensorwireError as SafetensorError
from .backend import check_backend

if TYPE_CHECKING:
    import os

    from ..checkpoint import TensorReader

__all__ = ["SafetensorError", "safe_open"]

_FRAMEWORKS = {"numpy": "np", "torch": "pt", "pytorch": "pt"}


def safe_open(
    filename: str | os.PathLike[str], framework: str, device: Any = "cpu", *, backend: str = "mmap"
) -> TensorReader[Any]:
    """Open a file to read some of its tensors: `tensorwire.open_file` under the name of safetensors' own function.

    Args:
        framework: "pt" or "np", or another name that safetensors has for these two.
        device: of torch tensors.
        backend: "mmap" or "pread", as safetensors has them; the file is read alike.

    Raises:
        KeyError: from the reader: there is no tensor of a name.
        SafetensorError: the file is damaged. It is `tensorwire.TensorwireError`.
        ValueError: there is no such framework, device or backend.
        OSError: the file cannot be read.
    """
    check_backend(backend)
    return open_file(filename, framework=_FRAMEWORKS.get(framework, framework), device=device)  # type: ignore[call-overload, no-any-return]
