"""What readers and writers of docs/checkpoints.md share: names, records, checksums."""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from .containers import Tensor
from .errors import CorruptDataError, LimitExceededError, require
from .hashes import content_hash

PREFIX = "tensorwire."
MANIFEST = "tensorwire.json"
MARKER = ("F6_E2M3", (0,))
MAX_RECORD_NBYTES = 100_000_000


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
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(base64.b64decode(text, validate=True), MAX_RECORD_NBYTES + 1)
    except (ValueError, zlib.error):
        raise CorruptDataError("a record is not base64 of zlib data") from None
    if len(data) > MAX_RECORD_NBYTES:
        raise LimitExceededError(f"a record unpacks to more than {MAX_RECORD_NBYTES} bytes")
    require(stream.eof and not stream.unused_data, "a record is cut, or something follows it")
    return data


def canonical(value: object) -> bytes:
    """Section "Canonical JSON and digits"."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def header_checksum(metadata: Mapping[str, str], tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> str:
    """The checksum of a compressed file's header; of each tensor name, dtype and shape."""
    pairs = sorted([key, text] for key, text in metadata.items() if key != f"{PREFIX}checksum")
    return content_hash(canonical([pairs, sorted([name, dtype, list(shape)] for name, dtype, shape in tensors)])).hex()


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """The checksum of a manifest."""
    return sha256(canonical({key: value for key, value in manifest.items() if key != "checksum"}))


def identity(tensors: list[Tensor]) -> str:
    """Section "Identity"."""
    listed = sorted([t.name, t.dtype, list(t.shape), content_hash(t.data).hex()] for t in tensors)
    return content_hash(canonical(listed)).hex()
