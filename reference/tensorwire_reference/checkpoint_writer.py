"""Writes files and directories of docs/checkpoints.md."""

import json
import zipfile
from collections.abc import Iterable, Mapping
from io import BytesIO
from math import prod
from typing import Any, TypeAlias

from .checkpoint import (
    MARKER,
    PREFIX,
    header_checksum,
    identity,
    manifest_checksum,
    pack,
    payload_name,
    sha256,
)
from .containers import Tensor, read_container
from .encoder import encode
from .hashes import content_hash
from .layouts import TABLE

Beside: TypeAlias = Mapping[str, tuple[str, str]]
"""By the name of a tensor the path of another file of its directory, and the name there of what it is relative to."""

METHOD = "tensorwire (install it, then import tensorwire.torch; or first run: tensorwire decompress)"
SAVING_NBYTES = 256


def write_container(tensors: Iterable[Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file with these tensors in this order; the data begins at a multiple of 64."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    content = b""
    for tensor in tensors:
        offsets = [len(content), len(content) + len(tensor.data)]
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        content += tensor.data
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-(8 + len(header)) % 64)
    return len(header).to_bytes(8, "little") + header + content


def sign(metadata: Mapping[str, str], tensors: list[Tensor]) -> dict[str, str]:
    """Metadata with the checksum of a header."""
    return {**metadata, f"{PREFIX}checksum": header_checksum(metadata, (each[:3] for each in tensors))}


def compressed_tensors(tensors: list[Tensor], profile: str, base: Mapping[str, Tensor] | None = None) -> list[Tensor]:
    """Markers, payloads and plain tensors, in the order of their data. With a base all that has its size in it under
    the same name is relative."""
    payloads, markers, plain = [], [], []
    for tensor in tensors:
        old = (base or {}).get(tensor.name)
        relative = old.data if old is not None and len(old.data) == len(tensor.data) else None
        frame = tensor.data
        if len(tensor.data) > SAVING_NBYTES:
            frame = encode(tensor.data, tensor.dtype, tensor.shape, profile=profile, base=relative)
        if len(frame) + SAVING_NBYTES <= len(tensor.data):
            payloads.append(Tensor(payload_name(tensor.name), "U8", (len(frame),), frame))
            markers.append(Tensor(tensor.name, *MARKER, b""))
        else:
            plain.append(tensor)
    plain.sort(key=lambda tensor: -len(tensor.data) / max(1, prod(tensor.shape)))
    return [*markers, *payloads, *plain]


def compress_file(
    original: bytes, profile: str, *, alone: bool, base: list[Tensor] | None = None, base_name: str = ""
) -> bytes:
    """A compressed file; `alone` if no manifest keeps what restores the original."""
    header, metadata, tensors = read_container(original)
    ours = {"version": "1", "profile": profile}
    ours |= {f"hash:{tensor.name}": content_hash(tensor.data).hex() for tensor in tensors}
    if alone:
        ours |= {"original_header": pack(header), "original_sha256": sha256(original)}
    if base is not None:
        ours["base_name"] = base_name
        if alone:
            ours["base_hash"] = identity(base)
    stored = compressed_tensors(tensors, profile, {t.name: t for t in base or ()})
    return write_container(stored, sign({**metadata, **{PREFIX + key: text for key, text in ours.items()}}, stored))


def torch_parts(original: bytes, dtypes: Mapping[str, str]) -> tuple[bytes, list[Tensor]]:
    """The record of a torch file (docs/pytorch-files.md) and its large storages, whose dtypes `dtypes` has by name."""
    storages, rest, position = [], [], 0
    for member in sorted(zipfile.ZipFile(BytesIO(original)).infolist(), key=lambda each: each.header_offset):
        name = member.filename.partition("/")[2]
        if name in dtypes and member.file_size > SAVING_NBYTES:
            name_and_extra = original[member.header_offset + 26 : member.header_offset + 30]
            start = member.header_offset + 30 + sum(int.from_bytes(name_and_extra[i : i + 2], "little") for i in (0, 2))
            rest.append(original[position:start])
            position = start + member.file_size
            numel = 8 * member.file_size // TABLE[dtypes[name]][0]
            storages.append(Tensor(name, dtypes[name], (numel,), original[start:position]))
    rest.append(original[position:])
    header = write_container(storages, {})
    header = header[: 8 + int.from_bytes(header[:8], "little")]
    sizes = b"".join(len(part).to_bytes(4, "little") for part in rest)
    return header + sizes + b"".join(rest), storages


def compress_torch(original: bytes, dtypes: Mapping[str, str], profile: str, *, alone: bool) -> bytes:
    """A compressed torch file; arguments as for `compress_file` and `torch_parts`."""
    record, storages = torch_parts(original, dtypes)
    ours = {"version": "1", "required": "torch", "profile": profile}
    ours |= {f"hash:{tensor.name}": content_hash(tensor.data).hex() for tensor in storages}
    if alone:
        ours |= {"original_torch": pack(record), "original_sha256": sha256(original)}
    stored = compressed_tensors(storages, profile)
    return write_container(stored, sign({PREFIX + key: text for key, text in ours.items()}, stored))


def frames_file(original: bytes, profile: str) -> bytes:
    """Section "What other libraries write"."""
    _, metadata, tensors = read_container(original)
    frames = [encode(tensor.data, tensor.dtype, tensor.shape, profile=profile) for tensor in tensors]
    stored = [
        Tensor(t.name, "F4", (2 * len(frame),), frame) if len(frame) < len(t.data) else t
        for t, frame in zip(tensors, frames, strict=True)
    ]
    return write_container(stored, {**metadata, f"{PREFIX}frames": "F4"})


def relative_file(original: bytes, profile: str, path: str, originals: Mapping[str, bytes], beside: Beside) -> bytes:
    """A compressed file of a directory, with tensors that are relative to others of it."""
    _, metadata, tensors = read_container(original)
    ours = {"version": "1", "required": "beside", "profile": profile, "path": path}
    ours |= {f"hash:{tensor.name}": content_hash(tensor.data).hex() for tensor in tensors}
    base = {}
    for name, (file, called) in beside.items():
        base[name] = next(each for each in read_container(originals[file]).tensors if each.name == called)
        ours[f"beside:{name}"] = file
        ours |= {f"base:{name}": called} if called != name else {}
    stored = compressed_tensors(tensors, profile, base)
    return write_container(stored, sign({**metadata, **{PREFIX + key: text for key, text in ours.items()}}, stored))


def compress_directory(
    originals: Mapping[str, bytes],
    profile: str,
    *,
    base: list[Tensor] | None = None,
    base_name: str = "",
    beside: Mapping[str, Beside] | None = None,
    storages: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, bytes]:
    """A compressed directory with config.json and an index at its top. `beside` goes by the path of a file, and
    `storages` by that of a torch file: the dtypes of its storages by name."""
    files = dict(originals)
    records = []
    shards = {path for path in originals if path.endswith(".safetensors")}
    for path in sorted(shards):
        if beside and path in beside:
            files[path] = relative_file(originals[path], profile, path, originals, beside[path])
        else:
            files[path] = compress_file(originals[path], profile, alone=False, base=base, base_name=base_name)
    for path, original in originals.items():
        if storages and path in storages:
            files[path] = compress_torch(original, storages[path], profile, alone=False)
            record, _ = torch_parts(original, storages[path])
            records.append({**_known(path, original), "kind": "torch", "header": pack(record)})
            continue
        if path == "config.json":
            files[path] = new_config(original, profile)
        elif path.endswith(".safetensors.index.json"):
            files[path] = new_index(original, {shard: files[shard] for shard in shards})
        records.append(_record(path, original, files[path]))
    features = [name for name, files_of_it in (("torch", storages), ("beside", beside)) if files_of_it]
    manifest: dict[str, Any] = {
        "format": "tensorwire-checkpoint",
        "version": 1,
        **({"required": " ".join(features)} if features else {}),
        "writer": "the reference",
        "profile": profile,
        "files": sorted(records, key=lambda record: str(record["path"])),
        "excluded": [],
    }
    if base is not None:
        manifest["base"] = {"name": base_name, "hash": identity(base)}
    files["tensorwire.json"] = signed_manifest(manifest)
    return files


def _known(path: str, original: bytes) -> dict[str, Any]:
    return {"path": path, "nbytes": len(original), "sha256": sha256(original)}


def _record(path: str, original: bytes, stored: bytes) -> dict[str, Any]:
    known = _known(path, original)
    if path.endswith(".safetensors"):
        return {**known, "kind": "safetensors", "header": pack(read_container(original).header)}
    if stored == original:
        return {**known, "kind": "copied"}
    return {**known, "kind": "replaced", "content": pack(original), "stored_sha256": sha256(stored)}


def signed_manifest(manifest: dict[str, Any]) -> bytes:
    """A manifest with its checksum."""
    return dump({**manifest, "checksum": manifest_checksum(manifest)})


def dump(value: dict[str, Any]) -> bytes:
    """An object as the text of a file."""
    return json.dumps(value, indent=1).encode() + b"\n"


def new_config(original: bytes, profile: str) -> bytes:
    """A config.json that names its dtype already, or needs none."""
    config = json.loads(original)
    ours = {"quant_method": METHOD, "version": 1, "profile": profile}
    if "quantization_config" in config:
        ours["wrapped"] = config["quantization_config"]
    return dump({**config, "quantization_config": ours})


def new_index(original: bytes, shards: Mapping[str, bytes]) -> bytes:
    """An index of these files, which it lists all."""
    index = json.loads(original)
    containers = {path: read_container(data) for path, data in sorted(shards.items())}
    weight_map = {tensor.name: path for path, found in containers.items() for tensor in found.tensors}
    total = sum(len(tensor.data) for found in containers.values() for tensor in found.tensors)
    return dump({**index, "metadata": {**index["metadata"], "total_size": total}, "weight_map": weight_map})
