"""The calls of ``safetensors.torch``: see `tensorwire.safetensors`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..checkpoint import load_file as _load_file
from ..checkpoint import save_file as _save_file
from ..checkpoint.tensors.as_safetensors import check_backend
from ..checkpoint.tensors.opening import load_bytes
from ..checkpoint.tensors.saving import save_bytes
from ..files.names import shown
from .order import in_order
from .shared import check_saved, duplicates

if TYPE_CHECKING:
    import os

    import torch

    Tensors = dict[str, torch.Tensor]

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def save(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a compressed safetensors file with these tensors. They are written through a temporary file."""
    check_saved(tensors)
    return save_bytes(in_order(tensors), metadata)


def save_file(tensors: Tensors, filename: str | os.PathLike[str], metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a compressed safetensors file, as `tensorwire.save_file` does.

    Raises:
        RuntimeError: tensors share memory.
        ValueError: one is not dense or not contiguous.
    """
    check_saved(tensors)
    _save_file(in_order(tensors), filename, metadata=metadata)


def load(data: bytes) -> Tensors:
    """The tensors in the bytes of a safetensors file, plain or compressed. They are read through a temporary file."""
    return load_bytes(data, "pt")


def load_file(filename: str | os.PathLike[str], device: Any = "cpu", *, backend: str = "mmap") -> Tensors:
    """The tensors of a file, plain or compressed, on a device. Both backends read alike."""
    check_backend(backend)
    return _load_file(filename, framework="pt", device=device)


def save_model(
    model: torch.nn.Module,
    filename: str,
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
) -> None:
    """Write the parameters and buffers of a model to a compressed safetensors file, each shared one once.

    Args:
        metadata: text for the header. The names that are left out are added, with the names that hold their content.
        force_contiguous: copy what is not contiguous; otherwise it is a ValueError.

    Raises:
        RuntimeError: tensors share memory that none of them covers.
    """
    tensors = model.state_dict()
    odd = [name for name, tensor in tensors.items() if not force_contiguous and not tensor.is_contiguous()]
    if odd:
        text = f"expected contiguous tensors, {shown(odd[0])} is not one"
        raise ValueError(f"{text}; use save_model(..., force_contiguous=True)")
    metadata = dict(metadata or {})
    for kept, others in duplicates(tensors).items():
        for name in others:
            metadata.setdefault(name, kept)
            del tensors[name]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, filename, metadata)


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: Any = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Put the tensors of a file, plain or compressed, into a model. Both backends read alike.

    Returns:
        The names of the model that the file lacks, and those of the file that the model lacks.

    Raises:
        RuntimeError: with `strict`, there are such names.
    """
    tensors = load_file(filename, device, backend=backend)
    shared = duplicates(model.state_dict(), tensors)
    found, unexpected = model.load_state_dict(tensors, strict=False)
    missing = set(found)
    for name in (name for others in shared.values() for name in others):
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        texts = [  # in torch's words, which programs look for
            f"{what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names)) + "; "
            for what, names in (("Missing", missing), ("Unexpected", unexpected))
            if names
        ]
        raise RuntimeError(f"{type(model).__name__}: {''.join(texts)}pass strict=False to load the others")
    return missing, unexpected
