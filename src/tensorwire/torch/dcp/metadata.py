"""What a distributed checkpoint says of itself, as JSON: all that torch's pickle says, without code in it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
import re
from enum import Enum
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ...errors import CorruptDataError, FormatError, UnsupportedVersionError

PICKLE = ".metadata"
FORMAT, VERSION = "tensorwire-dcp", 1
SHARD = re.compile(r"__\d+_[0-9a-f]{16}\.safetensors")


def entry_name(index: MetadataIndex) -> str:
    """What a part of a tensor, or a value that is no tensor, is called in the file of its rank."""
    return f"{index.fqn}@bytes" if index.offset is None else f"{index.fqn}@{','.join(map(str, index.offset))}"


def dump(metadata: Metadata, pickled: bytes) -> bytes:
    """
    Args:
        pickled: the same as torch's pickle, which stands beside it.

    Raises:
        TypeError: the planner has data of its own that JSON cannot hold.
    """
    tensors = {name: _described(each) for name, each in metadata.state_dict_metadata.items()}
    places = [
        [index.fqn, None if index.offset is None else list(index.offset), *place]
        for index, place in metadata.storage_data.items()
    ]
    body = {
        "format": FORMAT,
        "version": VERSION,
        "pickle_sha256": hashlib.sha256(pickled).hexdigest(),
        "state_dict": tensors,
        "storage": places,
        "planner": _paths(metadata.planner_data),
    }
    return _text(body | {"sha256": hashlib.sha256(_text(body)).hexdigest()})


def _text(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def parse(data: bytes, pickled: bytes | None) -> Metadata | None:
    """
    Args:
        pickled: what stands beside it, if there is something.

    Returns:
        None if it does not belong to the pickle: somebody else has saved since, or a save ended between the two.

    Raises:
        CorruptDataError: it is none of ours, or contradicts itself.
        UnsupportedVersionError: only a newer version understands it.
    """
    try:
        body = json.loads(data)
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r:.40}")
        if body["version"] != VERSION:
            raise UnsupportedVersionError(f"expected {FORMAT} of version {VERSION}, got {body['version']!r:.40}")
        if body.pop("sha256") != hashlib.sha256(_text(body)).hexdigest():
            raise ValueError("other text than was written")
        if pickled is not None and body["pickle_sha256"] != hashlib.sha256(pickled).hexdigest():
            return None
        tensors = {name: _parsed(each) for name, each in body["state_dict"].items()}
        places = {
            MetadataIndex(name, None if offset is None else torch.Size(offset)): (str(file), str(entry))
            for name, offset, file, entry in body["storage"]
        }
        planner = body["planner"]
        paths = None if planner is None else {name: tuple(path) for name, path in planner.items()}
        return _checked(Metadata(tensors, planner_data=paths, storage_data=places))
    except FormatError:
        raise
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        text = f"expected metadata of a distributed checkpoint, got {type(error).__name__}: {error}"
        raise CorruptDataError(text) from None


def _checked(metadata: Metadata) -> Metadata:
    """Its places are entries of files beside it, and each tensor has all of its parts."""
    places = metadata.storage_data
    if not isinstance(places, dict) or not all(
        isinstance(place, tuple) and len(place) == 2 and all(isinstance(part, str) for part in place)
        for place in places.values()
    ):
        raise CorruptDataError("expected a file and an entry for each part, as TensorwireWriter writes them")
    if not all(SHARD.fullmatch(file) for file, _ in places.values()):
        raise CorruptDataError("expected names of files beside the metadata")
    for index, (_, entry) in places.items():
        if entry != entry_name(index):
            raise CorruptDataError(f"expected the entry {entry_name(index)!r:.200}, got {entry!r:.200}")
    for name, each in metadata.state_dict_metadata.items():
        if isinstance(each, TensorStorageMetadata):
            _check_parts(name, each)
            parts = [MetadataIndex(name, chunk.offsets) for chunk in each.chunks]
        else:
            parts = [MetadataIndex(name)]
        if not all(part in places for part in parts):
            raise CorruptDataError(f"expected a place for each part of {name!r:.200}")
    return metadata


def _check_parts(name: str, tensor: TensorStorageMetadata) -> None:
    """A planner leaves what no part holds as it was before, without a word."""
    for chunk in tensor.chunks:
        if len(chunk.offsets) != len(chunk.sizes) or not all(
            0 <= start <= start + length <= size
            for start, length, size in zip(chunk.offsets, chunk.sizes, tensor.size, strict=True)
        ):
            raise CorruptDataError(f"expected parts of {name!r:.200} that lie in it")
    if sum(math.prod(chunk.sizes) for chunk in tensor.chunks) != math.prod(tensor.size):
        raise CorruptDataError(f"expected parts of {name!r:.200} that fill it")


def unpickle(data: bytes) -> Metadata:
    """What `pickle.dumps` has made of it; a pickle that names anything but metadata is refused.

    Raises:
        CorruptDataError: it is none, or may run code.
    """
    try:
        found = _Unpickler(io.BytesIO(data)).load()
        if not isinstance(found, Metadata):
            raise CorruptDataError(f"expected a pickle of metadata, got {type(found).__name__}")
        return _checked(found)
    except FormatError:
        raise
    except Exception as error:
        if "_StorageInfo" in str(error):
            text = "torch's FileSystemWriter has written this checkpoint: load it with torch's FileSystemReader"
            raise CorruptDataError(text) from None
        raise CorruptDataError(f"expected a pickle of metadata alone, got {type(error).__name__}: {error}") from None


class _Unpickler(pickle._Unpickler):
    """The one in Python: that in C sets attributes of whatever a pickle names, classes of the program too."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_build(self) -> None:
        kind = type(self.stack[-2])  # type: ignore[attr-defined]
        if kind.__module__ != metadata.__name__ or issubclass(kind, Enum):
            raise pickle.UnpicklingError(f"attributes of {kind.__name__}")
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        """Classes of metadata, and plain values of torch."""
        if (module, name) == ("builtins", "getattr"):
            return _member
        if module == metadata.__name__ and name in _CLASSES:
            return getattr(metadata, name)
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.layout)):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


def _member(kind: Any, name: str) -> Enum:
    """What `getattr` does in pickles of enumerations, which some versions of Python write so; it does nothing else."""
    if not isinstance(kind, type) or not issubclass(kind, Enum):
        raise pickle.UnpicklingError(f"builtins.getattr of {kind!r:.60}")
    found: Enum = kind[name]
    return found


# By name: with a dot in it, or for what the module imports, a pickle would reach any function.
_CLASSES = {
    name for name, found in vars(metadata).items() if isinstance(found, type) and found.__module__ == metadata.__name__
}
_PLAIN = {
    ("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict"), ("pathlib", "PosixPath"),
}  # fmt: skip


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
        _named(each[key], kind)
        for key, kind in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format))
    )
    properties = TensorProperties(dtype, layout, bool(each["requires_grad"]), memory_format, bool(each["pin_memory"]))
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in each["chunks"]]
    return TensorStorageMetadata(properties, torch.Size(each["size"]), chunks)


def _name(value: object) -> str:
    return str(value).removeprefix("torch.")


def _named(name: str, kind: type) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, kind):
        raise ValueError(f"{name!r:.40} is no {kind.__name__} of torch")
    return found


def _paths(planner_data: Any) -> Any:
    """Where in the state dict each name stands, as DefaultSavePlanner notes it."""
    if planner_data is None:
        return None
    if not isinstance(planner_data, dict) or not all(
        isinstance(path, tuple) and all(isinstance(step, (str, int)) for step in path) for path in planner_data.values()
    ):
        raise TypeError("the planner has data that JSON cannot hold")
    return {name: list(path) for name, path in planner_data.items()}
