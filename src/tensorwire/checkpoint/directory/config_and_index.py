"""The JSON files of a checkpoint that have to tell of the compression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import CorruptDataError, ErrorContext, UnsupportedVersionError
from ...files.json_object import dump, load
from ...files.names import REQUIRED_KEY, check_required, is_version, payload_name, shown_value
from .manifest import VERSION, read_index
from .paths import is_listable

if TYPE_CHECKING:
    from ...storage.locations import Location

NAME = "tensorwire"
"""The first word of a ``quant_method`` of ours."""

METHOD = f"{NAME} (install it, then import tensorwire.torch; or first run: tensorwire decompress)"
"""Loaders that do not know a ``quant_method`` print it and nothing else of config.json, so it names the ways out.
Transformers compares all of it, so it never changes."""

CONFIG_KEY = "quantization_config"
WRAPPED_KEY = "wrapped"


class Shard(NamedTuple):
    """What an index has to know of a compressed file: which tensors are frames in it, and the size of its data."""

    compressed: frozenset[str]
    data_nbytes: int
    dtype: str | None = None
    """torch's name for the dtype of its floats."""


def read_config(location: Location) -> dict[str, Any]:
    """A config.json as it was before its model was compressed.

    Raises:
        CorruptDataError: it is no JSON object.
    """
    with ErrorContext(file=location):
        return original_config(load(read_index(location)))


def original_config(config: dict[str, Any]) -> dict[str, Any]:
    """The object of a config.json as it was before its model was compressed."""
    if not _is_ours(config):
        return config
    wrapped = config[CONFIG_KEY].get(WRAPPED_KEY)
    rest = {key: value for key, value in config.items() if key != CONFIG_KEY}
    return rest if wrapped is None else {**rest, CONFIG_KEY: wrapped}


def is_compressed_config(data: bytes) -> bool:
    """Whether a config.json says that the model beside it is compressed."""
    try:
        return _is_ours(load(data))
    except CorruptDataError:
        return False


def _is_ours(config: Mapping[str, Any]) -> bool:
    ours = config.get(CONFIG_KEY)
    method = ours.get("quant_method") if isinstance(ours, dict) else None
    return isinstance(method, str) and method.partition(" ")[0] == NAME


def check_config(ours: Mapping[str, Any]) -> None:
    """Raise UnsupportedVersionError for a ``quantization_config`` of ours that only a newer version understands."""
    if not is_version(ours.get("version"), VERSION):
        raise UnsupportedVersionError(
            f"expected a checkpoint of version {VERSION}, got {shown_value(ours.get('version'))}"
        )
    check_required(ours.get("required", ""), f"{CONFIG_KEY}.required")


def new_config(data: bytes, profile: str, dtype: str | None = None) -> bytes | None:
    """config.json with our ``quantization_config``, one that is there kept inside ours; None if it is no JSON object.

    A reader of config.json then knows that it needs tensorwire. A configuration of transformers that does not tell
    the dtype of the model gains `dtype`: else transformers looks for it in the file, where frames are U8.
    """
    try:
        config = load(data)
    except CorruptDataError:
        return None
    ours: dict[str, Any] = {"quant_method": METHOD, "version": VERSION, "profile": profile}
    if CONFIG_KEY in config:
        ours[WRAPPED_KEY] = config[CONFIG_KEY]
    if dtype is not None and "model_type" in config and not (config.get("dtype") or config.get("torch_dtype")):
        config["dtype"] = dtype
    return dump({**config, CONFIG_KEY: ours})


def weight_map(index: Mapping[str, Any]) -> dict[str, str]:
    """The file of each tensor, as an index says.

    Raises:
        UnsupportedVersionError: only a newer version understands it.
        CorruptDataError: it is no index, or leads out of its directory.
    """
    metadata = index.get("metadata")
    if isinstance(metadata, dict):
        check_required(metadata.get(REQUIRED_KEY, ""), f"metadata.{REQUIRED_KEY}")
    files = index.get("weight_map")
    if not isinstance(files, dict):
        raise CorruptDataError("expected an object weight_map in the index")
    for path in files.values():
        if not isinstance(path, str) or not is_listable(path):
            raise CorruptDataError(f"expected plain relative paths in the index, got {shown_value(path)}")
    return files


def new_index(data: bytes, shards: Mapping[str, Shard]) -> bytes | None:
    """An index with payloads and markers in place of compressed tensors; None if it need not change.

    Args:
        shards: by path relative to the index. Names that are not in them are kept as they are.

    Raises:
        CorruptDataError: it is no index, or leads out of its directory.
    """
    index = load(data)
    files = weight_map(index)
    changed: dict[str, str] = {}
    for name, path in files.items():
        if path in shards and name in shards[path].compressed:
            changed[payload_name(name)] = path
        changed[name] = path
    if len(changed) == len(files):
        return None
    metadata = index.get("metadata")
    if isinstance(metadata, dict) and "total_size" in metadata:
        paths = sorted(set(files.values()) & shards.keys())
        metadata = {**metadata, "total_size": sum(shards[path].data_nbytes for path in paths)}
        index = {**index, "metadata": metadata}
    return dump({**index, "weight_map": changed})
