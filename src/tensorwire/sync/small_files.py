"""Small files of a model directory that travel with a version: config.json, the tokenizer. Not the tensors.

A version tells of all of them. Its folder holds those that changed, and that of an anchor each, so what a version
tells of stands in its own folder or in one since the last anchor.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..checkpoint.directory.config_and_index import is_compressed_config, read_config
from ..checkpoint.directory.manifest import read_manifest
from ..checkpoint.directory.paths import CONFIG_NAME, MANIFEST_NAME, MODEL_SUFFIXES, is_index, is_plain_relative
from ..errors import CorruptDataError, LimitExceededError
from ..files.json_object import dump
from ..files.names import shown
from ..storage.inputs import open_input

if TYPE_CHECKING:
    from ..storage.locations import Location

MAX_FILES, MAX_NBYTES = 256, 64 << 20
"""How many a version has, and how large one is. A tokenizer has up to about 35 MB."""

_MAX_TOTAL_NBYTES = 256 << 20
_MAX_NAME_NBYTES = 255
_HASH = re.compile(r"[0-9a-f]{32}")
_HOME = re.compile(r"small-[0-9]{5}-[0-9a-f]{16}")
_OURS = {MANIFEST_NAME, "version.json"}


class SmallFile(NamedTuple):
    """
    Attributes:
        nbytes, hash: of its content.
        number: of the version whose folder holds it.
        home: its name there.
    """

    nbytes: int
    hash: str
    number: int
    home: str


def is_small(name: str) -> bool:
    """Whether a file of this name, directly in a model directory, may travel: it holds no tensors, is not hidden, and
    is none that we write ourselves."""
    return (
        is_plain_relative(name)
        and "/" not in name
        and name.isprintable()
        and len(name.encode(errors="replace")) <= _MAX_NAME_NBYTES
        and not name.startswith(".")
        and not name.lower().endswith(MODEL_SUFFIXES)
        and not is_index(name)
        and name not in _OURS
    )


def read_directory(root: Location) -> dict[str, bytes]:
    """The small files directly in a directory, as they were before it was compressed. What is larger than one of them
    may be stays, and a warning tells so; what lies in folders stays.

    Raises:
        LimitExceededError: they are more or larger than a version has.
        OSError: one cannot be read.
    """
    found: dict[str, bytes] = {}
    places: dict[str, Location] = {place.name: place for place in root.iterdir()}
    for name, place in sorted(places.items()):
        if not is_small(name) or place.is_dir():
            continue
        with open_input(place) as file:
            if file.nbytes > MAX_NBYTES:
                text = f"{shown(name)} has more than {MAX_NBYTES >> 20} MiB, and does not travel with the version"
                warnings.warn(text, RuntimeWarning, stacklevel=3)
                continue
            found[name] = _original(root, name, file.read(0, file.nbytes))
        _check_sizes(map(len, found.values()))
    return found


def _original(root: Location, name: str, data: bytes) -> bytes:
    if name != CONFIG_NAME or not is_compressed_config(data):
        return data
    manifest = read_manifest(root)
    stored = hashlib.sha256(data).hexdigest()
    for file in () if manifest is None else manifest.files:
        if file.path == name and file.stored_sha256 == stored:
            return file.unpacked_content()
    return dump(read_config(root / name))


def parse(found: object, number: int) -> dict[str, SmallFile]:
    """Small files as the index of a version lists them; CorruptDataError for anything else."""
    if not isinstance(found, dict):
        raise CorruptDataError("expected the small files in the index")
    files = {}
    for name, facts in found.items():
        if not (is_small(name) and isinstance(facts, list) and len(facts) == 4 and _are_facts(number, *facts)):
            raise CorruptDataError(
                f"expected name, size, hash and place of a small file in the index, got {shown(name)}"
            )
        files[name] = SmallFile(*facts)
    _check_sizes(each.nbytes for each in files.values())
    return files


def _are_facts(newest: int, nbytes: object, found_hash: object, number: object, home: object) -> bool:
    return (
        type(nbytes) is int
        and 0 <= nbytes <= MAX_NBYTES
        and isinstance(found_hash, str)
        and _HASH.fullmatch(found_hash) is not None
        and type(number) is int
        and 0 <= number <= newest
        and isinstance(home, str)
        and _HOME.fullmatch(home) is not None
    )


def _check_sizes(sizes: Iterable[int]) -> None:
    all_sizes = list(sizes)
    if len(all_sizes) > MAX_FILES or sum(all_sizes) > _MAX_TOTAL_NBYTES:
        raise LimitExceededError(
            f"expected at most {MAX_FILES} small files of {_MAX_TOTAL_NBYTES >> 20} MiB together, got "
            f"{len(all_sizes)} of {sum(all_sizes):,} bytes",
            advice="name a directory with those that an engine needs",
        )
