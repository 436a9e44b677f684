"""Reads files and directories of docs/checkpoints.md, whole in memory, and has what the writer shares.

It restores torch files too (docs/pytorch-files.md, section "The record"), and tensors that are relative to other files
of their directory (docs/directories.md, section "Tensors that several files have").
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .decoder import decode
from .errors import CorruptDataError, UnsupportedVersionError, require
from .hashes import content_hash

PREFIX = "tensorwire."
MARKER = ("F6_E2M3", (0,))
FEATURES = {"torch", "beside"}
KIND_MEMBERS = {
    "safetensors": ("header",),
    "torch": ("header",),
    "replaced": ("content", "stored_sha256"),
    "copied": (),
}


class Tensor(NamedTuple):
    """A tensor of a file as it stands there, or as an original has it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Container(NamedTuple):
    """What is in a safetensors file. `header` is its JSON as it stands."""

    header: bytes
    metadata: dict[str, str]
    tensors: list[Tensor]


def payload_name(name: str) -> str:
    """The name of the payload of a tensor."""
    module, dot, param = name.rpartition(".")
    return f"{module}{dot}_{param}_tensorwire"


def tensor_name(payload: str) -> str:
    """The name of the tensor whose payload has this name; "" if no payload is named so."""
    module, dot, param = payload.rpartition(".")
    name = module + dot + param[1 : -len("_tensorwire")]
    return name if len(param) > len("_tensorwire") and payload_name(name) == payload else ""


def pack(data: bytes) -> str:
    """Bytes as text: zlib, base64."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpack(text: str) -> bytes:
    """Inverts `pack`."""
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except (ValueError, zlib.error):
        raise CorruptDataError("a record is not base64 of zlib data") from None


def canonical(value: object) -> bytes:
    """Section "Canonical JSON and digits"."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def header_checksum(metadata: Mapping[str, str], tensors: list[Tensor]) -> str:
    """The checksum of a compressed file's header."""
    pairs = sorted([key, text] for key, text in metadata.items() if key != f"{PREFIX}checksum")
    return content_hash(canonical([pairs, sorted([t.name, t.dtype, list(t.shape)] for t in tensors)])).hex()


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """The checksum of a manifest."""
    return sha256(canonical({key: value for key, value in manifest.items() if key != "checksum"}))


def identity(tensors: list[Tensor]) -> str:
    """Section "Identity"."""
    listed = sorted([t.name, t.dtype, list(t.shape), content_hash(t.data).hex()] for t in tensors)
    return content_hash(canonical(listed)).hex()


def read_container(data: bytes) -> Container:
    """The tensors of a safetensors file that is known to be one, in the order of their data."""
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    entries = json.loads(header)
    metadata = entries.pop("__metadata__", {})
    content = data[8 + length :]
    tensors = [
        Tensor(name, entry["dtype"], tuple(entry["shape"]), content[slice(*entry["data_offsets"])])
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"])
    ]
    return Container(header, metadata, tensors)


def check_required(features: object) -> None:
    """Section "What later versions may add"."""
    if features is not None:
        require(isinstance(features, str), "the required features are no text")
        if set(str(features).split()) - FEATURES:
            raise UnsupportedVersionError(f"features of a later version: {features}")


def read_file(
    data: bytes, base: Mapping[str, Tensor] | None = None, directory: Mapping[str, bytes] | None = None
) -> list[Tensor]:
    """The original tensors of a file, plain or compressed, in the order of their data; `base` by name, `directory` by
    path all files of the one that it stands in."""
    container = read_container(data)
    ours = {key.removeprefix(PREFIX): text for key, text in container.metadata.items() if key.startswith(PREFIX)}
    check_required(ours.get("required"))
    if ours.get("frames", "F4") != "F4":
        raise UnsupportedVersionError(f"frames of dtype {ours['frames']}")
    if "version" in ours or (ours and "frames" not in ours):
        if ours.get("version") != "1":
            raise UnsupportedVersionError(f"version {ours.get('version')}")
        found = header_checksum(container.metadata, container.tensors)
        require(ours.get("checksum") == found, "the checksum of the header does not match")
    markers = {t.name for t in container.tensors if (t.dtype, t.shape) == MARKER}
    payloads = {t.name for t in container.tensors if _is_payload(t, markers)}
    tensors = []
    for stored in container.tensors:
        name = stored.name
        if stored.name in payloads:
            name = tensor_name(stored.name)
        elif payload_name(stored.name) in payloads:
            continue  # its marker
        tensor = stored
        if name != stored.name or (ours.get("frames") and stored.dtype == "F4" and len(stored.shape) == 1):
            old = _base_of(name, ours, base or {}, directory or {})
            frame = decode(stored.data, None if old is None else old.data)
            tensor = Tensor(name, frame.header.dtype, frame.header.shape, frame.data)
        recorded = ours.get(f"hash:{name}")
        require(recorded in (None, content_hash(tensor.data).hex()), f"{name} has another content than recorded")
        tensors.append(tensor)
    return tensors


def _base_of(
    name: str, ours: Mapping[str, str], base: Mapping[str, Tensor], directory: Mapping[str, bytes]
) -> Tensor | None:
    """What a tensor is relative to; None if it is not there."""
    called, path = ours.get(f"base:{name}", name), ours.get(f"beside:{name}")
    if path is None:
        return base.get(called)
    require(not {"", ".", ".."} & set(path.split("/")), f"{path} leads out of the directory")
    if path not in directory:
        return None
    return next((each for each in read_file(directory[path], base, directory) if each.name == called), None)


def _is_payload(tensor: Tensor, markers: set[str]) -> bool:
    return tensor_name(tensor.name) in markers and tensor.dtype == "U8" and len(tensor.shape) == 1 and bool(tensor.data)


def restore_file(
    data: bytes,
    header: bytes,
    digest: str,
    base: Mapping[str, Tensor] | None = None,
    directory: Mapping[str, bytes] | None = None,
) -> bytes:
    """The original of a compressed file, of which the header and the SHA-256 are kept."""
    original = len(header).to_bytes(8, "little") + header + b"".join(_in_order(data, header, base, directory))
    require(sha256(original) == digest, "the original has another SHA-256")
    return original


def restore_torch_file(
    data: bytes,
    record: bytes,
    digest: str,
    base: Mapping[str, Tensor] | None = None,
    directory: Mapping[str, bytes] | None = None,
) -> bytes:
    """The original of a compressed torch file, of which the record and the SHA-256 are kept."""
    length = int.from_bytes(record[:8], "little")
    storages = _in_order(data, record[8 : 8 + length], base, directory)
    sizes = np.frombuffer(record, "<u4", len(storages) + 1, 8 + length).tolist()
    rest = record[8 + length + 4 * len(sizes) :]
    require(sum(sizes) == len(rest), "the rest has another size")
    ends = np.cumsum(sizes).tolist()
    parts = [rest[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    original = b"".join(part + storage for part, storage in zip(parts, [*storages, b""], strict=True))
    require(sha256(original) == digest, "the original has another SHA-256")
    return original


def _in_order(
    data: bytes, header: bytes, base: Mapping[str, Tensor] | None, directory: Mapping[str, bytes] | None
) -> list[bytes]:
    """The tensors of a compressed file, in the order of a header."""
    order = json.loads(header)
    order.pop("__metadata__", None)
    found = {tensor.name: tensor for tensor in read_file(data, base, directory)}
    require(found.keys() == order.keys(), "the original header has other tensors")
    return [found[name].data for name in sorted(order, key=lambda name: order[name]["data_offsets"])]


def restore_single(data: bytes, base: Mapping[str, Tensor] | None = None) -> bytes:
    """The original of a file that was compressed on its own."""
    metadata = read_container(data).metadata
    digest = metadata[f"{PREFIX}original_sha256"]
    if f"{PREFIX}original_torch" in metadata:
        return restore_torch_file(data, unpack(metadata[f"{PREFIX}original_torch"]), digest, base)
    return restore_file(data, unpack(metadata[f"{PREFIX}original_header"]), digest, base)


def read_manifest(data: bytes) -> dict[str, Any]:
    """A manifest whose checksum, features and records are right."""
    manifest: dict[str, Any] = json.loads(data)
    require(manifest.get("format") == "tensorwire-checkpoint", "the format is another one")
    if manifest.get("version") != 1:
        raise UnsupportedVersionError(f"version {manifest.get('version')}")
    check_required(manifest.get("required"))
    require(manifest.get("checksum") == manifest_checksum(manifest), "the checksum of the manifest does not match")
    for file in manifest["files"]:
        require(file["kind"] in KIND_MEMBERS, f"files of kind {file['kind']}")
        require(all(member in file for member in KIND_MEMBERS[file["kind"]]), "a member of a file is missing")
    return manifest


def restore_directory(files: Mapping[str, bytes], base: Mapping[str, Tensor] | None = None) -> dict[str, bytes]:
    """The original files of a compressed directory, by relative path; none of them may have been edited."""
    originals = {}
    for file in read_manifest(files["tensorwire.json"])["files"]:
        path = file["path"]
        if file["kind"] in ("safetensors", "torch"):
            restore = restore_file if file["kind"] == "safetensors" else restore_torch_file
            originals[path] = restore(files[path], unpack(file["header"]), file["sha256"], base, files)
        else:
            originals[path] = unpack(file["content"]) if file["kind"] == "replaced" else files[path]
        require(sha256(originals[path]) == file["sha256"], f"{path} has another SHA-256")
        require(len(originals[path]) == file["nbytes"], f"{path} has another size")
    return originals
