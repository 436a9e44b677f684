"""The checksums of JSON and the digits of hashes, as docs/checkpoints.md says them, worked out anew."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING

import numpy as np

import tensorwire
from tests.support.frame_surgery import content_hash

if TYPE_CHECKING:
    from pathlib import Path

# Quotes, controls, what is escaped in pairs, what sorts otherwise in UTF-16.
ODD = 'a "\\/\b\f\n\r\t\x01\x1f\x7f\x80é€\ue000\U0001f600'
SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def spelled(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{spelled(key)}:{spelled(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(spelled, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(map(_character, value)) + '"'
    assert type(value) is int
    return str(value)


def _character(character: str) -> str:
    if character in SHORT or " " <= character < "\x7f":
        return SHORT.get(character, character)
    units = struct.unpack(f"<{len(character.encode('utf-16-le')) // 2}H", character.encode("utf-16-le"))
    return "".join(f"\\u{unit:04x}" for unit in units)


def header_of(path: Path) -> dict:
    with path.open("rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))


def test_checksum_and_hashes_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {f"{ODD}.weight": np.arange(3000, dtype="<f4"), "\U0001f600": np.arange(3), "\ue000": np.zeros((2, 0))}
    tensorwire.save_file(arrays, path, metadata={ODD: ODD, "format": "pt"})
    header = header_of(path)
    metadata = header.pop("__metadata__")
    for name, array in arrays.items():
        assert metadata[f"tensorwire.hash:{name}"] == content_hash(array.tobytes()), name
    checksum = metadata.pop("tensorwire.checksum")
    tensors = sorted([name, entry["dtype"], entry["shape"]] for name, entry in header.items())
    said = [sorted([key, text] for key, text in metadata.items()), tensors]
    assert checksum == content_hash(spelled(said).encode("ascii"))


def test_checksum_of_a_manifest(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    tensorwire.save_file({"a": np.arange(3000, dtype="<f4")}, tmp_path / "compressed")
    tensorwire.decompress_checkpoint(tmp_path / "compressed", source / "model.safetensors")
    for name in ("\ue000", "\U0001f600", 'a "\x7fé'):
        (source / name).write_bytes(b"x")
    tensorwire.compress_checkpoint(source, tmp_path / "packed")
    manifest = json.loads((tmp_path / "packed" / "tensorwire.json").read_text("utf-8"))
    checksum = manifest.pop("checksum")
    assert checksum == hashlib.sha256(spelled(manifest).encode("ascii")).hexdigest()
