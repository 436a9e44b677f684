"""Restores originals: files and directories as they were before they were compressed, byte for byte.

Torch files too (docs/pytorch-files.md, section "The record").
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from .checkpoint import MANIFEST, sha256, unpack
from .containers import Content, parse_header
from .errors import CorruptDataError, TruncatedDataError, require
from .manifest import OF_TENSORS
from .tensor_files import Checkpoint, TensorFile

PIECE_NBYTES = 8 << 20
Note = Callable[[str], None]


def refuse(note: str) -> None:
    """Takes a note as an error."""
    raise CorruptDataError(note)


def restore_directory(
    checkpoint: Checkpoint, prefix: str = "", note: Note = refuse
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The paths of the original files of a compressed directory, each with the parts of its content.

    `prefix` is that of the paths that are wanted. A part is right when all of its file were taken. `note` is told which
    files beside the tensors were edited or are missing.
    """
    assert checkpoint.manifest is not None
    for file in checkpoint.manifest["files"]:
        if file["path"].startswith(prefix):
            parts = _original(checkpoint, file, note)
            if parts is not None:
                yield file["path"], parts


def _original(checkpoint: Checkpoint, file: dict[str, Any], note: Note) -> Iterator[bytes] | None:
    path, kind = file["path"], file["kind"]
    stored = checkpoint.files.get(path)
    if kind in OF_TENSORS:
        return _checked(
            _with_record(checkpoint.open(path), kind, unpack(file["header"])), file["sha256"], file["nbytes"]
        )
    if kind == "replaced":
        if stored is None or sha256(stored[:]) != file["stored_sha256"]:
            note(f"{path} was edited or is missing: restored as it was before it was compressed")
        return _checked(iter([unpack(file["content"])]), file["sha256"], file["nbytes"])
    if stored is None:
        note(f"{path} is missing: left out")
        return None
    return _copied(checkpoint, stored, file, note)


def _copied(checkpoint: Checkpoint, stored: Content, file: dict[str, Any], note: Note) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for start in range(0, len(stored), PIECE_NBYTES):
        piece = stored[start : start + PIECE_NBYTES]
        digest.update(piece)
        yield piece
    if digest.hexdigest() != file["sha256"]:
        checkpoint.check_links(file["path"], MANIFEST)
        note(f"{file['path']} was edited: kept as it is now")


def restore_single(file: TensorFile) -> Iterator[bytes] | None:
    """The original of a file that was compressed on its own; None if it has no record."""
    kind, key = ("torch", "original_torch") if "torch" in file.features else ("safetensors", "original_header")
    if key not in file.ours or "original_sha256" not in file.ours:
        return None
    return _checked(_with_record(file, kind, unpack(file.ours[key])), file.ours["original_sha256"])


def restored_file(checkpoint: Checkpoint, path: str) -> Iterator[bytes] | None:
    """The original of one file of tensors of a compressed directory; None if its manifest lists no such file."""
    assert checkpoint.manifest is not None
    for file in checkpoint.manifest["files"]:
        if file["path"] == path and file["kind"] in OF_TENSORS:
            return _original(checkpoint, file, refuse)
    return None


def without_record(file: TensorFile) -> Iterator[bytes]:
    """The tensors of a file of which nothing says what its original was, in a safetensors file under a new header."""
    entries: dict[str, Any] = {"__metadata__": file.metadata} if file.metadata else {}
    position = 0
    for name in file.names:
        dtype, shape = file.label(name)
        end = position + file.nbytes(name)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for name in file.names:
        yield file.read(name).data


def _checked(parts: Iterator[bytes], digest: str, nbytes: int | None = None) -> Iterator[bytes]:
    """The same parts; raises behind the last one unless all of them are what was recorded."""
    found, count = hashlib.sha256(), 0
    for part in parts:
        found.update(part)
        count += len(part)
        yield part
    require(nbytes in (None, count), "the original has another size than recorded")
    require(found.hexdigest() == digest, "the original has another SHA-256 than recorded")


def _with_record(file: TensorFile, kind: str, record: bytes) -> Iterator[bytes]:
    """The parts of a file of which a record is kept: the header of the original, or what is around its storages."""
    if kind == "safetensors":
        yield len(record).to_bytes(8, "little") + record
        yield from _in_order(file, record)
        return
    if len(record) < 8:
        raise TruncatedDataError(f"a record of {len(record)} bytes")
    end = 8 + int.from_bytes(record[:8], "little")
    storages = parse_header(record[8:end]).entries
    begin = end + 4 * (len(storages) + 1)
    require(begin <= len(record), "a record that ends before its sizes")
    sizes = np.frombuffer(record, "<u4", len(storages) + 1, end).tolist()
    require(begin + sum(sizes) == len(record), "the rest has another size")
    for size, storage in zip(sizes, chain(_in_order(file, record[8:end]), [b""]), strict=True):
        yield record[begin : begin + size]
        yield storage
        begin += size


def _in_order(file: TensorFile, header: bytes) -> Iterator[bytes]:
    """The tensors of a compressed file, in the order of a header that names them all."""
    entries = parse_header(header).entries
    require(entries.keys() == set(file.names), "the header of the original has other tensors")
    for name, entry in entries.items():
        found = (*file.label(name), file.nbytes(name))
        require(found == (entry.dtype, entry.shape, entry.nbytes), f"{name} is another one than the original has there")
        yield file.read(name).data
