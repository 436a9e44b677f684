"""Versions of a lineage as their indexes tell of them, and which leads to which. Nothing here reads or writes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..checkpoint.directory.config_and_index import checked_index, weight_map
from ..codec import dtype_bits
from ..errors import CorruptDataError, FormatError, LimitExceededError
from ..files.base import identity
from ..files.header import check_name, is_shape
from ..files.json_object import load
from ..files.names import shown
from . import small_files

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from .small_files import SmallFile

INDEX_NAME = "model.safetensors.index.json"
FORMAT = "tensorwire"
"""In three keys of the layout by which other receivers see that they cannot apply a version."""

MAX_NUMBER = 10**18 - 1
"""The last version: longer numbers are none of a version's folder."""
MAX_TENSORS = 1_000_000
"""How many tensors a version has, those that did not change among them."""

_FOLDER = re.compile(r"weight_v([0-9]{6,18})")
_HASH = re.compile(r"[0-9a-f]{32}")
_SHARD = re.compile(r"model-[0-9]{5,}-[0-9a-f]{16}\.safetensors")
_FOREIGN = "another program wrote this version; follow a store that tensorwire published to"
_DAMAGED = "remove the folder of this version: the next one that is published is an anchor then"
_KEYS = ("delta_encoding", "compression_format", "checksum_format")


def is_number(number: object) -> TypeIs[int]:
    """Whether this is the number of a version, which may come from anywhere."""
    return type(number) is int and 0 <= number <= MAX_NUMBER


class Tensor(NamedTuple):
    """What a tensor is, as its content hash tells."""

    dtype: str
    shape: tuple[int, ...]
    hash: str

    @property
    def layout(self) -> tuple[str, tuple[int, ...]]:
        return self.dtype, self.shape


def nbytes_of(tensor: Tensor) -> int:
    """The size of a tensor."""
    return prod(tensor.shape) * dtype_bits(tensor.dtype) // 8


Tensors = Mapping[str, Tensor]


class Position(NamedTuple):
    """What a follower holds: all tensors of a version, or with `number` None some that are of none."""

    number: int | None
    writer: str
    tensors: Tensors

    @property
    def id(self) -> tuple[int | None, str]:
        return self.number, self.writer


class Version(NamedTuple):
    """What an index says.

    Attributes:
        number: of the version.
        lineage: an identifier that the versions which follow each other share.
        writer: the publisher that wrote it; another one may go on with the lineage.
        state: the identity of all tensors.
        base, base_state: the version that it is relative to, and its state; None for an anchor.
        tensors: those that changed, in the order in which they were published; of an anchor all.
        homes: by tensor the file that holds it.
        files: by file its size.
        small: the small files beside the tensors, all of them, by name.
    """

    number: int
    lineage: str
    writer: str
    state: str
    base: int | None
    base_state: str | None
    tensors: Tensors
    homes: Mapping[str, str]
    files: Mapping[str, int]
    small: Mapping[str, SmallFile] = MappingProxyType({})

    @property
    def id(self) -> tuple[int, str]:
        """What no other version has."""
        return self.number, self.writer

    @property
    def nbytes(self) -> int:
        """The size of its files, without the index."""
        return sum(self.files.values()) + sum(each.nbytes for each in self.small.values() if each.number == self.number)


def folder_name(number: int) -> str:
    return f"weight_v{number:06d}"


def number_of(name: str) -> int | None:
    """The number of the version that a folder holds; None if no version's folder is named so."""
    found = _FOLDER.fullmatch(name)
    return int(found[1]) if found and folder_name(int(found[1])) == name else None


def hinted_number(hint: bytes) -> int | None:
    """The number that the file "latest" tells."""
    return number_of(hint.decode(errors="replace").strip().rpartition("/")[2])


def state_of(tensors: Tensors) -> str:
    """The identity of all tensors."""
    return identity((name, *tensor) for name, tensor in tensors.items())


def check_count(count: int) -> None:
    """Raise LimitExceededError for more tensors than a version has."""
    if count > MAX_TENSORS:
        raise LimitExceededError(
            f"expected at most {MAX_TENSORS:,} tensors, got {count:,}", advice="join small ones, or publish two stores"
        )


def dump_index(version: Version) -> bytes:
    """The index of a version; LimitExceededError if it is larger than one that is read."""
    metadata: dict[str, Any] = {"version": f"{version.number:06d}", **dict.fromkeys(_KEYS, FORMAT)}
    if version.base is not None:
        metadata["base_version"] = f"{version.base:06d}"
        metadata["tensorwire.base_state"] = version.base_state
    metadata["tensorwire.lineage"] = version.lineage
    metadata["tensorwire.writer"] = version.writer
    metadata["tensorwire.state"] = version.state
    metadata["tensorwire.files"] = dict(version.files)
    metadata["tensorwire.tensors"] = version.tensors
    if version.small:
        metadata["tensorwire.small_files"] = dict(version.small)
    index = {"metadata": metadata, "weight_map": dict(version.homes)}
    return checked_index(json.dumps(index, separators=(",", ":"), ensure_ascii=False).encode())


def parse_index(data: bytes, number: int) -> Version:
    """The version of an index, checked.

    Raises:
        CorruptDataError: it is none of ours, or of another version than its folder.
    """
    try:
        return _parsed(load(data), number)
    except FormatError as error:
        if error.advice != _FOREIGN:
            error.advice = _DAMAGED
        raise


def _parsed(index: dict[str, Any], number: int) -> Version:
    homes = weight_map(index)
    found = index.get("metadata")
    if not isinstance(found, dict) or any(found.get(key) != FORMAT for key in _KEYS):
        raise CorruptDataError(
            f"expected {FORMAT!r} as {' and '.join(_KEYS)} in the index of a version",
            advice=_FOREIGN,
        )
    if found.get("version") != f"{number:06d}":
        raise CorruptDataError(f"expected the index of version {number:06d}, got that of {found.get('version')!r:.40}")
    base = found.get("base_version")
    base_number = None if base is None else number_of(f"weight_v{base}")
    base_state = found.get("tensorwire.base_state")
    hashes = [found.get("tensorwire.state")] + ([] if base is None else [base_state])
    if not all(isinstance(each, str) and _HASH.fullmatch(each) for each in hashes):
        raise CorruptDataError("expected the hashes of states in the index")
    if base is not None and (base_number is None or base_number >= number):
        raise CorruptDataError(f"expected a base_version below {number:06d}, got {base!r:.40}")
    lineage, writer = found.get("tensorwire.lineage"), found.get("tensorwire.writer")
    if not isinstance(lineage, str) or not isinstance(writer, str):
        raise CorruptDataError("expected the lineage and the writer in the index")
    tensors = parse_tensors(found.get("tensorwire.tensors"))
    files = found.get("tensorwire.files")
    if not isinstance(files, dict) or not all(
        type(size) is int and _SHARD.fullmatch(file) for file, size in files.items()
    ):
        raise CorruptDataError("expected names and sizes of files in the index")
    if homes.keys() != tensors.keys() or set(homes.values()) != files.keys():
        raise CorruptDataError("expected one file for each tensor, and a tensor in each file, in the index")
    own = {file: file for file in files}  # one text for all tensors of a file
    homes = {name: own[file] for name, file in homes.items()}
    state = found["tensorwire.state"]
    if base is None and state_of(tensors) != state:
        raise CorruptDataError(f"expected tensors of the state {state} in the index, got {state_of(tensors)}")
    small = small_files.parse(found.get("tensorwire.small_files", {}), number)
    return Version(number, lineage, writer, state, base_number, base_state, tensors, homes, files, small)


def parse_tensors(found: object) -> dict[str, Tensor]:
    """Tensors as an index or a note lists them; CorruptDataError for anything else."""
    if not isinstance(found, dict):
        raise CorruptDataError("expected the tensors in the index")
    check_count(len(found))
    tensors = {}
    layouts: dict[Any, Any] = {}  # most tensors have one of a few: each is kept once
    for name, facts in found.items():
        check_name(name)
        if not (isinstance(facts, list) and len(facts) == 3 and _are_facts(*facts)):
            raise CorruptDataError("expected dtype, shape and hash of a tensor in the index", tensor=shown(name))
        layout = facts[0], tuple(facts[1])
        dtype, shape = layouts.setdefault(layout, layout)
        tensors[name] = Tensor(dtype, shape, facts[2])
    return tensors


def _are_facts(dtype: object, shape: object, found_hash: object) -> bool:
    return (
        isinstance(dtype, str)
        and is_shape(shape)
        and isinstance(found_hash, str)
        and _HASH.fullmatch(found_hash) is not None
    )


def result(tensors: Tensors, links: Sequence[Version]) -> dict[str, Tensor]:
    """All tensors after these versions, each of which is relative to the one before it or an anchor.

    The last state alone is looked at, which tells of all tensors; `parse_index` has looked at that of an anchor.

    Raises:
        CorruptDataError: a version does not lead to its state.
    """
    found = dict(tensors)
    for link in links:
        if link.base is None:
            found.clear()
        found.update(link.tensors)
    last = links[-1] if links else None
    if last is not None and last.base is not None and (state := state_of(found)) != last.state:
        raise CorruptDataError(
            f"expected version {last.number:06d} to lead to the state {last.state}, got {state}",
            advice="its index, or one that it is relative to, is damaged or forged: publish an anchor",
        )
    return found


def steps(tensors: Tensors, links: Sequence[Version], goal: Tensors) -> dict[str, list[Version]]:
    """By name the versions whose frames, one after the other, make the tensor of `goal` of the one that is there.

    No versions: what is there is the tensor already. A tensor that is not in `tensors`, or whose layout changes, begins
    with a plain frame.
    """
    found: dict[str, list[Version]] = {name: [] for name in goal}
    for link in links:
        for name, tensor in link.tensors.items():
            wanted, held = goal.get(name), tensors.get(name)
            if wanted is None or held == wanted:
                continue
            found[name].append(link)
            if tensor.layout != wanted.layout or held == tensor:
                found[name].clear()
    return found
