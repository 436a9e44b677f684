"""A sender and a receiver of versions as slime, miles and SGLang have them, written from the description of the layout
in docs/sync-versions.md. They share nothing with the code under test.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
import xxhash
import zstandard

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from pathlib import Path

INDEX = "model.safetensors.index.json"


def digest(kind: str, data: bytes | bytearray) -> str:
    if kind == "adler32":
        return format(zlib.adler32(data), "08x")
    if kind == "xxh3-128":
        return xxhash.xxh3_128(bytes(data)).hexdigest()
    import blake3

    return str(blake3.blake3(bytes(data)).hexdigest())


def write_shard(path: Path, tensors: Mapping[str, bytes], metadata: Mapping[str, str]) -> None:
    """A safetensors file of U8 tensors with one dimension."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for name, data in tensors.items():
        stop = position + len(data)
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [position, stop]}
        position = stop
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(tensors.values()))


def read_shard(path: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """The bytes of each tensor, and the metadata."""
    blob = path.read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    places = {name: [8 + length + offset for offset in entry["data_offsets"]] for name, entry in header.items()}
    return {name: blob[start:stop] for name, (start, stop) in places.items()}, metadata


def differences(encoding: str, new: bytes, old: bytes) -> bytes:
    if encoding == "xor":
        return bytes(a ^ b for a, b in zip(new, old, strict=True))
    positions = [i for i, (a, b) in enumerate(zip(new, old, strict=True)) if a != b]
    places = b"".join(struct.pack("<I", position) for position in positions)
    return struct.pack("<I", len(positions)) + places + bytes(new[position] for position in positions)


def send(
    folder: Path,
    new: Mapping[str, bytes],
    old: Mapping[str, bytes],
    *,
    version: int,
    encoding: str,
    kind: str = "xxh3-128",
    num_shards: int = 1,
) -> Path:
    """Write what changed since `old`, which is the version before, as a folder of `folder`."""
    place = folder / f"weight_v{version:06d}"
    place.mkdir()
    changed = [name for name in new if new[name] != old[name]]
    files = {}
    for number in range(num_shards):
        names = changed[number::num_shards]
        name = f"model-{number:05d}-of-{num_shards:05d}.safetensors"
        payloads = {
            each: zstandard.ZstdCompressor(level=1).compress(differences(encoding, new[each], old[each]))
            for each in names
        }
        write_shard(place / name, payloads, {each: digest(kind, new[each]) for each in names})
        files |= dict.fromkeys(names, name)
    metadata = {
        "version": f"{version:06d}",
        "base_version": f"{version - 1:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": kind,
    }
    (place / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": files}))
    return place


def receive(place: Path, state: MutableMapping[str, bytearray], at: int) -> int:
    """Change `state`, which is that of version `at`, in place. Returns the version that it is of then."""
    index = json.loads((place / INDEX).read_text())
    metadata = index["metadata"]
    assert int(metadata["base_version"]) == at
    assert metadata["compression_format"] == "zstd"
    for file in sorted(set(index["weight_map"].values())):
        payloads, checksums = read_shard(place / file)
        assert payloads.keys() == {name for name, home in index["weight_map"].items() if home == file}
        for name, payload in payloads.items():
            data = zstandard.ZstdDecompressor().decompress(payload)
            region = np.frombuffer(state[name], np.uint8)
            if metadata["delta_encoding"] == "xor":
                region ^= np.frombuffer(data, np.uint8)
            else:
                assert metadata["delta_encoding"] == "overwrite"
                (count,) = struct.unpack_from("<I", data)
                positions = np.frombuffer(data, "<u4", count, 4)
                region[positions] = np.frombuffer(data, np.uint8, len(data) - 4 - 4 * count, 4 + 4 * count)
            assert digest(metadata["checksum_format"], state[name]) == checksums[name]
    return int(metadata["version"])
