"""``tensorwire-dcp.json``: which files a distributed checkpoint is of, and what they hold. docs/dcp.md describes it.

All that read it do so here, with torch or without, so that they agree on what is whole. It stands beside torch's own
metadata, the pickle ``.metadata``, which says the same. If it does not belong to that, another save has come since, or
one has ended between the two; the pickle then speaks for the checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from ...codec import FROM_TORCH, MAX_NDIM
from ...errors import CorruptDataError, ErrorContext, FormatError, UnsupportedTensorError, UnsupportedVersionError
from ...files.json_object import check_nbytes, load, seal
from ...files.names import is_version, shown, shown_value
from ...files.reader import StoredFile
from ...storage.inputs import open_input
from .distributed_pickle import read_pickle
from .paths import is_plain_relative

if TYPE_CHECKING:
    from ...storage.locations import Location

DISTRIBUTED_NAME = "tensorwire-dcp.json"
PICKLE_NAME = ".metadata"
DATA_SUFFIX = ".distcp"
"""How the names of files end that torch's FileSystemWriter writes for ranks."""
FORMAT, VERSION = "tensorwire-dcp", 1
MAX_NBYTES = 1 << 30
"""The most bytes of the JSON, and of the pickle: 5 million parts of tensors. Objects of the parser take up to
forty times as much of a forged one, so this bounds memory."""

_SHARD = re.compile(r"__\d+_[0-9a-f]{16}\.safetensors")
_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_MAX_NUMEL = 2**63
_MAX_SPLIT_NDIM = 5
"""In so many dimensions a tensor may be split at once: meshes of devices have fewer, and corners double with each."""


def entry_name(name: str, offset: tuple[int, ...] | list[int] | None) -> str:
    """What a part of a tensor, or a value that is no tensor, is called in the file of its rank."""
    return f"{name}@bytes" if offset is None else f"{name}@{','.join(map(str, offset))}"


def stored_form(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape in a file, of a tensor with this dtype and shape of torch's. An element of torch's FP4 is two of
    F4, and complex128 is pairs of F64.

    Raises:
        UnsupportedTensorError: no safetensors file holds this dtype.
    """
    if dtype == "complex128":
        return "F64", (*shape, 2)
    if dtype not in FROM_TORCH:
        raise UnsupportedTensorError(f"no safetensors file holds torch.{dtype}")
    if FROM_TORCH[dtype] == "F4":
        *rows, last = shape or (1,)
        return "F4", (*rows, 2 * last)
    return FROM_TORCH[dtype], shape


def check_size(nbytes: int) -> None:
    """Raise LimitExceededError for metadata that no reader takes."""
    advice = "put the tensors into several checkpoints, each in a directory of its own"
    check_nbytes(nbytes, MAX_NBYTES, "metadata", advice)


def read(folder: Location) -> dict[str, Any]:
    """What the metadata of a checkpoint of ours says: `state_dict`, `storage`, `files` and `planner`.

    Raises:
        FileNotFoundError: there is no checkpoint.
        FormatError: it is damaged, contradicts itself or is too large; or torch's own writer has made it.
    """
    body = read_any(folder)
    if body["files"] is None:
        text = "torch's FileSystemWriter has written this checkpoint: load it with torch's FileSystemReader"
        raise CorruptDataError(text, file=folder / PICKLE_NAME, advice="")
    return body


def read_any(folder: Location) -> dict[str, Any]:
    """The same, of a checkpoint that torch's FileSystemWriter has made too: see `read_pickle`."""
    pickled, text = (_read(folder / name) for name in (PICKLE_NAME, DISTRIBUTED_NAME))
    if text is not None:
        with ErrorContext(file=folder / DISTRIBUTED_NAME):
            body = _parse(text, pickled)
            if body is not None:
                return _checked(body)
    if pickled is None:
        below = sorted({place.parent.name for place in folder.glob(f"*/{PICKLE_NAME}")})
        advice = f"expected a distributed checkpoint, with {PICKLE_NAME} in it; name the directory that was saved to"
        advice += f", such as {below[0]} below it" if below else ""
        raise FileNotFoundError(errno.ENOENT, advice, str(folder))
    with ErrorContext(file=folder / PICKLE_NAME):
        return _checked(read_pickle(pickled))


def _read(place: Location) -> bytes | None:
    try:
        with open_input(place) as file, ErrorContext(file=place):
            check_size(file.nbytes)
            return file.read(0, file.nbytes)
    except FileNotFoundError:
        return None


def _parse(data: bytes, pickled: bytes | None) -> dict[str, Any] | None:
    """The JSON; None if it does not belong to the pickle."""
    body = load(data)
    if body.get("format") != FORMAT:
        raise _refusal(f"format {shown_value(body.get('format'))}")
    if not is_version(body.get("version"), VERSION):
        found = shown_value(body.get("version"))
        raise UnsupportedVersionError(f"expected {FORMAT} of version {VERSION}, got {found}")
    if body.pop("sha256", None) != seal(body):
        raise _refusal("other text than was written")
    if pickled is not None and body.get("pickle_sha256") != hashlib.sha256(pickled).hexdigest():
        return None
    if not isinstance(body.get("files"), dict):
        raise _refusal("no files")
    body["planner"] = _paths(body.get("planner", ()))
    return body


def _paths(planner: Any) -> dict[str, tuple[str | int, ...]] | None:
    """Where in the state dict each name stands."""
    if planner is None:
        return None
    if not isinstance(planner, dict) or not all(
        isinstance(path, list) and all(isinstance(step, (str, int)) for step in path) for path in planner.values()
    ):
        raise _refusal("data of a planner that are no paths")
    return {name: tuple(path) for name, path in planner.items()}


def _refusal(found: str) -> CorruptDataError:
    return CorruptDataError(f"expected the metadata of a distributed checkpoint, got {found}")


def _checked(body: dict[str, Any]) -> dict[str, Any]:
    """Its places are entries of files beside it, each file has a checksum, and each tensor has all of its parts."""
    try:
        (_check_ranges if body["files"] is None else _check_places)(body["storage"], body["files"])
        entries = {entry_name(name, offset) for name, offset, _, _ in body["storage"]}
        for name, tensor in body["state_dict"].items():
            if tensor is None:
                parts: list[list[int] | None] = [None]
            else:
                _check_parts(name, tensor["size"], tensor["chunks"])
                parts = [offsets for offsets, _ in tensor["chunks"]]
            if not all(entry_name(name, part) in entries for part in parts):
                raise CorruptDataError(f"expected a place for each part of {shown(name)}")
        _check_strays(body["storage"], body["state_dict"])
    except FormatError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _refusal(f"{type(error).__name__}: {error!s:.200}") from None
    return body


def _check_places(places: list[Any], files: dict[str, Any]) -> None:
    for file, checksum in files.items():
        if not (_SHARD.fullmatch(file) and isinstance(checksum, str) and _CHECKSUM.fullmatch(checksum)):
            raise CorruptDataError("expected names of files beside the metadata, each with its checksum")
    for name, offset, file, entry in places:
        if not isinstance(file, str) or file not in files:
            raise CorruptDataError("expected names of files beside the metadata, each with its checksum")
        _check_part(name, offset)
        if entry != entry_name(name, offset):
            raise CorruptDataError(f"expected the entry {shown(entry_name(name, offset))}, got {shown_value(entry)}")


def _check_ranges(places: list[Any], _: None) -> None:
    """The same of what torch's writer has made: a range of bytes has no name and no checksum."""
    for name, offset, file, part in places:
        if not is_plain_relative(file):
            raise CorruptDataError(f"expected the name of a file beside the metadata, got {shown(file)}")
        _check_part(name, offset)
        if not all(0 <= each < _MAX_NUMEL for each in part):
            raise CorruptDataError(f"expected bytes of a file as the place of {shown(name)}")


def _check_part(name: Any, offset: Any) -> None:
    if not isinstance(name, str) or not (offset is None or _are_sizes(offset)):
        raise CorruptDataError(f"expected the name and the offset of a part, got {shown_value(name)}")


def _check_parts(name: str, size: list[int], chunks: list[Any]) -> None:
    """A planner leaves what no part holds as it was before, without a word."""
    if not _are_sizes(size) or prod(max(1, each) for each in size) >= _MAX_NUMEL:
        raise CorruptDataError(f"expected a shape that a tensor may have as the size of {shown(name)}")
    for offsets, sizes in chunks:
        if not (_are_sizes(offsets) and _are_sizes(sizes) and len(offsets) == len(sizes) == len(size)) or not all(
            start + length <= whole for start, length, whole in zip(offsets, sizes, size, strict=True)
        ):
            raise CorruptDataError(f"expected parts of {shown(name)} that lie in it")
    split = [axis for axis, whole in enumerate(size) if any(sizes[axis] != whole for _, sizes in chunks)]
    if len(split) > _MAX_SPLIT_NDIM:
        raise CorruptDataError(f"expected {shown(name)} split in at most {_MAX_SPLIT_NDIM} dimensions")
    if _corners(chunks, split) != _corners([([0] * len(size), size)], split):
        raise CorruptDataError(f"expected parts of {shown(name)} that fill it, each place once")


def _corners(boxes: Iterable[Any], axes: list[int]) -> dict[str, int]:
    """By corner how many boxes begin there less how many end there, dimension by dimension. Boxes next to each other
    have the sums of the one that they make up together, and boxes that overlap or leave a gap have others. A corner is
    a text, whose hash nobody foresees: numbers can be chosen so that each look-up goes through all of a dict."""
    sums: Counter[str] = Counter()
    for offsets, sizes in boxes:
        if all(sizes):
            ends = [((offsets[axis], 1), (offsets[axis] + sizes[axis], -1)) for axis in axes]
            for corner in product(*ends):
                sums[str([place for place, _ in corner])] += prod(sign for _, sign in corner)
    return {corner: count for corner, count in sums.items() if count}


def _check_strays(places: list[Any], state_dict: dict[str, Any]) -> None:
    """What is a place of no part is of no use; but tuples of any numbers are easily made to have one hash."""
    for name, offset, _, _ in places:
        tensor = state_dict[name]
        if offset is not None and (
            tensor is None
            or len(offset) != len(tensor["size"])
            or any(start > whole for start, whole in zip(offset, tensor["size"], strict=True))
        ):
            raise CorruptDataError(f"expected parts of {shown(name)} that lie in it")


def _are_sizes(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MAX_NDIM
        and all(type(each) is int and 0 <= each < _MAX_NUMEL for each in value)
    )


def is_distributed(names: Iterable[str]) -> bool:
    """Whether files of these names, all that stand in a directory, are a distributed checkpoint of ours."""
    present = set(names)
    return DISTRIBUTED_NAME in present or (PICKLE_NAME in present and any(map(_SHARD.fullmatch, present)))


def refusal(root: Location, names: Iterable[str], advice: str = "") -> ValueError | None:
    """What is raised where a model is wanted, and a directory with files of these names is a distributed checkpoint, of
    ours or of torch's FileSystemWriter; None for any other one."""
    present = set(names)
    if is_distributed(present):
        reader = f"storage_reader=tensorwire.torch.dcp.TensorwireReader({str(root)!r})"
    elif PICKLE_NAME in present and any(name.endswith(DATA_SUFFIX) for name in present):
        reader = f"checkpoint_id={str(root)!r}"
    else:
        return None
    return ValueError(
        f"{root} is a distributed checkpoint, which training code loads: dcp.load(state, {reader}); "
        f"tensorwire convert {shlex.quote(str(root))} DST, or convert_checkpoint, makes a model directory or a torch "
        f"file of it{advice}"
    )


def named_files(folder: Location) -> dict[str, str]:
    """The files of a distributed checkpoint, with the checksums of their headers. A save that died leaves others.

    Errors are those of `read`.
    """
    files: dict[str, str] = read(folder)["files"]
    return files


def open_shard(place: Location, checksum: str) -> StoredFile:
    """A file that the metadata names.

    Raises:
        FileNotFoundError: it is not there.
        FormatError: it is damaged, or another one: see `check_shard`.
    """
    try:
        stored = StoredFile(place)
    except FileNotFoundError:
        raise missing(place) from None
    try:
        check_shard(stored, checksum)
    except CorruptDataError:
        stored.close()
        raise
    return stored


def missing(place: Location, metadata: str = DISTRIBUTED_NAME) -> FileNotFoundError:
    """What is raised for a file that the metadata names and that is not there."""
    text = (
        f"this file, which {metadata} names, is missing: copy it from where the checkpoint was saved; if it is "
        "missing there too, load an earlier checkpoint"
    )
    return FileNotFoundError(errno.ENOENT, text, str(place))


def check_shard(stored: StoredFile, checksum: str) -> None:
    """Raise CorruptDataError for a file that another save has written, or another rank: its own checksums are right."""
    if stored.checksum != checksum:
        raise CorruptDataError(
            f"expected the file that was saved with this checkpoint, whose header has the checksum {checksum}, "
            f"got {shown_value(stored.checksum)}",
            file=stored.path,
            advice="a file of another rank or of another save stands in its place: copy all files of the checkpoint "
            "again, from where it was saved",
        )
