"""What a distributed checkpoint says of itself: torch's objects as JSON, and JSON as these."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ...checkpoint.directory import distributed
from ...errors import CorruptDataError
from ...files.json_object import canonical, seal
from ...files.names import shown_value


class Place(NamedTuple):
    """Where a part is. torch's pickle has these, by the name of this class.

    Attributes:
        file: beside the metadata.
        entry: the name of the part in it.
        checksum: of the header of that file.
    """

    file: str
    entry: str
    checksum: str

    @property
    def relative_path(self) -> str:
        """What torch's own reader asks for first."""
        raise AttributeError(
            "tensorwire's TensorwireWriter has written this checkpoint: load it with "
            "storage_reader=tensorwire.torch.dcp.TensorwireReader(path)"
        )


def dump(metadata: Metadata, pickled: bytes) -> bytes:
    """
    Args:
        pickled: the same as torch's pickle, which stands beside it.

    Raises:
        TypeError: the planner has data of its own that JSON cannot hold.
    """
    tensors = {name: _described(each) for name, each in metadata.state_dict_metadata.items()}
    places = [
        [index.fqn, None if index.offset is None else list(index.offset), place.file, place.entry]
        for index, place in metadata.storage_data.items()
    ]
    body = {
        "format": distributed.FORMAT,
        "version": distributed.VERSION,
        "pickle_sha256": hashlib.sha256(pickled).hexdigest(),
        "state_dict": tensors,
        "storage": places,
        "files": {place.file: place.checksum for place in metadata.storage_data.values()},
        "planner": _paths(metadata.planner_data),
    }
    return canonical(body | {"sha256": seal(body)})


def parse(body: dict[str, Any]) -> Metadata:
    """What `distributed.read` has found.

    Raises:
        CorruptDataError: this torch has no such dtype, layout or memory format.
    """
    tensors = {name: _parsed(each) for name, each in body["state_dict"].items()}
    places = {
        MetadataIndex(name, offset): Place(file, entry, body["files"][file])
        for name, offset, file, entry in body["storage"]
    }
    return Metadata(tensors, planner_data=body["planner"], storage_data=places)


def _described(each: Any) -> Any:
    if isinstance(each, BytesStorageMetadata):
        return None
    properties = each.properties
    return {
        "dtype": _name(properties.dtype),
        "layout": _name(properties.layout),
        "memory_format": _name(properties.memory_format),
        "requires_grad": properties.requires_grad,
        "pin_memory": properties.pin_memory,
        "size": list(each.size),
        "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in each.chunks],
    }


def _parsed(each: Any) -> BytesStorageMetadata | TensorStorageMetadata:
    if each is None:
        return BytesStorageMetadata()
    dtype, layout, memory_format = (
        _named(each.get(key), kind)
        for key, kind in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format))
    )
    requires_grad, pin_memory = each.get("requires_grad") is True, each.get("pin_memory") is True
    properties = TensorProperties(dtype, layout, requires_grad, memory_format, pin_memory)
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in each["chunks"]]
    return TensorStorageMetadata(properties, torch.Size(each["size"]), chunks)


def _name(value: object) -> str:
    return str(value).removeprefix("torch.")


def _named(name: object, kind: type) -> Any:
    found = vars(torch).get(name) if isinstance(name, str) else None
    if not isinstance(found, kind):
        raise CorruptDataError(
            f"{shown_value(name)} is no {kind.__name__} of torch {torch.__version__}",
            advice="if a newer torch saved it, upgrade torch; else the metadata is damaged: fetch it again",
        )
    return found


def _paths(planner_data: Any) -> Any:
    """Where in the state dict each name stands, as DefaultSavePlanner notes it."""
    if planner_data is None:
        return None
    if not isinstance(planner_data, dict) or not all(
        isinstance(name, str) and isinstance(path, tuple) and all(isinstance(step, (str, int)) for step in path)
        for name, path in planner_data.items()
    ):
        raise TypeError("the planner has data that JSON cannot hold")
    return {name: list(path) for name, path in planner_data.items()}
