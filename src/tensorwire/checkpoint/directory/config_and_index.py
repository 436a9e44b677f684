"""The JSON files of a checkpoint that have to tell of the compression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...codec import torch_name
from ...errors import CorruptDataError, ErrorContext, LimitExceededError, UnsupportedVersionError
from ...files.json_object import check_nbytes, dump, load
from ...files.names import REQUIRED_KEY, check_required, is_version, payload_name, shown, shown_value
from ...storage.inputs import open_input
from .manifest import VERSION
from .paths import is_listable, without_dots

if TYPE_CHECKING:
    from ...files.reader import StoredFile
    from ...storage.locations import Location
    from ...storage.readable import Readable

NAME = "tensorwire"
"""The first word of a ``quant_method`` of ours."""

METHOD = f"{NAME} (install it, then import tensorwire.torch; or first run: tensorwire decompress)"
"""Loaders that do not know a ``quant_method`` print it and nothing else of config.json, so it names the ways out.
Transformers compares all of it, so it never changes."""

CONFIG_KEY = "quantization_config"
WRAPPED_KEY = "wrapped"
WEIGHTS_KEY = "transformers_weights"
"""By it a config.json names the file of weights, or the index, that Transformers reads before it looks for others."""
MAX_INDEX_NBYTES = 512 << 20
_MAX_INDEX_VALUES = 24_000_000
"""The most of an index that lists tensors, a million of them or more. Counting its commas and brackets takes a moment,
and bounds the memory that the objects of the parser take."""


class Shard(NamedTuple):
    """What an index has to know of a compressed file.

    Attributes:
        names: of its tensors.
        compressed: those of them that are frames in it.
        data_nbytes: the size of its data.
        dtype: torch's name for the dtype of its floats.
    """

    names: frozenset[str]
    compressed: frozenset[str]
    data_nbytes: int
    dtype: str | None = None


def float_dtype(stored: StoredFile) -> str | None:
    """torch's name for the dtype of the first tensor of floats, in the order of their names; None if there is none.

    As transformers looks for the dtype of a model.
    """
    for name in sorted(stored.tensors):
        dtype = stored.layout(name)[0]
        if dtype in ("BF16", "F16", "F32", "F64"):
            return torch_name(dtype)
    return None


class Index(NamedTuple):
    """An index that says which file has which tensor.

    Attributes:
        members: all of it.
        files: by the name of a tensor the plain relative path of its file.
        notices: in what it departs from how an index is written, and how it was read.
    """

    members: dict[str, Any]
    files: dict[str, str]
    notices: list[str]


def read_index(location: Location) -> bytes:
    """The text of an index.

    Raises:
        LimitExceededError: it is larger than indexes are.
    """
    with open_input(location) as file:
        return index_in(file)


def index_in(file: Readable) -> bytes:
    """The same of an index that is open."""
    check_nbytes(file.nbytes, MAX_INDEX_NBYTES, "an index")
    return checked_index(file.read(0, file.nbytes))


def checked_index(data: bytes) -> bytes:
    """The text of an index that `read_index` reads; LimitExceededError for any other."""
    check_nbytes(len(data), MAX_INDEX_NBYTES, "an index")
    if (found := sum(map(data.count, (b",", b"[", b"{")))) > _MAX_INDEX_VALUES:
        raise LimitExceededError(
            f"expected an index of at most {_MAX_INDEX_VALUES:,} commas and brackets, got {found:,}"
        )
    return data


def read_config(location: Location) -> dict[str, Any]:
    """A config.json as it was before its model was compressed.

    Raises:
        CorruptDataError: it is no JSON object.
    """
    with ErrorContext(file=location):
        return original_config(load(read_index(location), []))


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
        return _is_ours(load(data, []))
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


def is_model_config(data: bytes) -> bool:
    """Whether JSON of any name is a configuration of a model, as Transformers writes it: a program may give it to
    ``from_pretrained`` as `config`."""
    if b'"model_type"' not in data:
        return False
    try:
        members = load(data, [])
    except CorruptDataError:
        return False
    return "model_type" in members and not members.keys().isdisjoint(("architectures", "transformers_version"))


def new_config(config: Mapping[str, Any], profile: str, dtype: str | None = None) -> bytes:
    """config.json with our ``quantization_config``, one that is there kept inside ours.

    A reader of config.json then knows that it needs tensorwire. A configuration of transformers that does not tell
    the dtype of the model gains `dtype`: else transformers looks for it in the file, where frames are U8.
    """
    ours: dict[str, Any] = {"quant_method": METHOD, "version": VERSION, "profile": profile}
    if CONFIG_KEY in config:
        ours[WRAPPED_KEY] = config[CONFIG_KEY]
    if dtype is not None and "model_type" in config and not (config.get("dtype") or config.get("torch_dtype")):
        config = {**config, "dtype": dtype}
    return dump({**config, CONFIG_KEY: ours})


def weight_map(index: Mapping[str, Any]) -> dict[str, str]:
    """The file of each tensor, as an index says, by its plain relative path.

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
    plain: dict[object, str] = {}
    for path in files.values():
        if not isinstance(path, str) or not is_listable(plain.setdefault(path, without_dots(path))):
            raise CorruptDataError(f"expected plain relative paths in the index, got {shown_value(path)}")
    return {name: plain[path] for name, path in files.items()}


def parse_index(data: bytes) -> Index:
    """An index, read as loaders read it that look at it less strictly.

    Raises:
        UnsupportedVersionError, CorruptDataError: as for `weight_map`.
    """
    repeated: list[str] = []
    index = load(data, repeated)
    files = weight_map(index)
    notices = []
    if repeated:
        notices.append(f"{shown(repeated[0])} stands twice in it; the last entry counts")
    dotted = sorted({path for path in index["weight_map"].values() if without_dots(path) != path})
    if dotted:
        notices.append(f"{shown(dotted[0])} is read as {shown(without_dots(dotted[0]))}")
    return Index(index, files, notices)


def not_held(names: Sequence[str]) -> str:
    """A notice of tensors that an index lists and their files do not hold."""
    if len(names) == 1:
        return f"it lists the tensor {shown(names[0])}, which its file does not hold"
    return f"it lists {len(names):,} tensors that their files do not hold, such as {shown(names[0])}"


def new_index(index: Index, shards: Mapping[str, Shard]) -> bytes | None:
    """An index with payloads and markers in place of compressed tensors; None if it need not change.

    Args:
        shards: by path relative to the index. Names that are not in them are kept as they are.
    """
    written = index.members["weight_map"]
    changed: dict[str, str] = {}
    for name, path in index.files.items():
        if path in shards and name in shards[path].compressed:
            changed[payload_name(name)] = written[name]
        changed[name] = written[name]
    if len(changed) == len(written):
        return None
    members = index.members
    metadata = members.get("metadata")
    if isinstance(metadata, dict) and "total_size" in metadata:
        paths = sorted(set(index.files.values()) & shards.keys())
        metadata = {**metadata, "total_size": sum(shards[path].data_nbytes for path in paths)}
        members = {**members, "metadata": metadata}
    return dump({**members, "weight_map": changed})
