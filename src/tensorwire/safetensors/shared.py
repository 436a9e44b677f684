"""Tensors that share memory: a file holds each of them once."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from ..files.names import shown


def check_saved(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse what `safetensors.torch.save_file` refuses.

    Raises:
        RuntimeError: tensors share memory.
        ValueError: it is no dict of dense tensors that are contiguous.
    """
    if not isinstance(tensors, dict):
        raise ValueError(f"expected a dict of names to torch tensors, got {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"expected a torch tensor as {shown(name)}, got {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise ValueError(f"expected a dense tensor as {shown(name)}, got {tensor.layout}; save tensor.to_dense()")
        if not tensor.is_contiguous():
            raise ValueError(f"expected a contiguous tensor as {shown(name)}; save tensor.contiguous()")
    groups = shared_names(tensors)
    if groups:
        raise RuntimeError(f"expected tensors that share no memory, these do: {groups}; save the model with save_model")


def shared_names(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """The names of tensors whose memory overlaps, in groups of two or more. ValueError for one that is sharded."""
    storages: dict[tuple[torch.device, int], list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if hasattr(tensor, "full_tensor"):
            raise ValueError(f"expected a whole tensor as {shown(name)}, got a sharded one; save tensor.full_tensor()")
        if tensor.device.type != "meta" and tensor.numel():
            key = tensor.device, tensor.untyped_storage().data_ptr()
            storages.setdefault(key, []).append((tensor.data_ptr(), _end(tensor), name))
    groups: list[list[str]] = []
    for places in storages.values():
        stop = 0
        for start, end, name in sorted(places):
            if start >= stop:
                groups.append([])
            groups[-1].append(name)
            stop = max(stop, end)
    return [sorted(group) for group in groups if len(group) > 1]


def duplicates(tensors: Mapping[str, torch.Tensor], preferred: Collection[str] = ()) -> dict[str, list[str]]:
    """By the name of a tensor that stays those that hold nothing else; a name of `preferred` stays if it can.

    Raises:
        RuntimeError: none of those that share memory covers all of it.
    """
    found = {}
    for group in shared_names(tensors):
        whole = [name for name in group if _covers_storage(tensors[name])]
        if not whole:
            raise RuntimeError(f"expected a tensor that covers the memory of all others in {group}, none does")
        kept = next((name for name in whole if name in preferred), whole[0])
        found[kept] = [name for name in group if name != kept]
    return found


def _end(tensor: torch.Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.data_ptr() + (last + 1) * tensor.itemsize)


def _covers_storage(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return bool(tensor.data_ptr() == storage.data_ptr() and tensor.nbytes == storage.nbytes())
