"""Files that are no safetensors files are called by their name, with what to do; and what is advised works."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorwire.checkpoint import compress_checkpoint, inspect, load_file, open_file, verify
from tensorwire.errors import FormatError, TruncatedDataError
from tests.support.checkpoint_models import container

if TYPE_CHECKING:
    from pathlib import Path


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, weight=np.zeros(5, np.float32))
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(5, np.float32))
    return buffer.getvalue()


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model/model.safetensors", container([]))
    return buffer.getvalue()


# The first bytes as the formats' own pages give them; where Python writes the format, a file that it has written.
FOREIGN = {
    "gguf": (b"GGUF\x03\0\0\0" + bytes(100), "GGUF"),
    "npz": (_npz(), "npz file.*numpy.load"),
    "npy": (_npy(), "npy file.*numpy.load"),
    "pickle": (pickle.dumps({"weight": 1}, protocol=2), "pickle.*weights_only=True"),
    "pickle-4": (pickle.dumps({"weight": 1}, protocol=4), "pickle"),
    # ModelProto: ir_version (field 1) is 8, then producer_name (field 2).
    "onnx": (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0" + bytes(100), "ONNX"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
    "msgpack": (b"\x83\xa6params\x82\xa7encoder" + bytes(100), "msgpack file, as Flax"),
    "msgpack-16": (b"\xde\0\x20\xd9\x24transformer.h.0" + bytes(100), "msgpack file, as Flax"),
    "html": (b"\n<!DOCTYPE html>\n<html><head><title>401</title>", "HTML page.*download"),
    "html-lower": (b"<html lang=en>Sign in", "HTML page"),
    "xml": (b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code></Error>', "XML.*download"),
    "xml-bom": (b'\xef\xbb\xbf<?xml version="1.0"?><Error/>', "XML"),
    "json": (json.dumps({"error": "Repository not found"}).encode(), "JSON"),
    "json-short": (b"[]", "JSON"),
    "gzip": (gzip.compress(container([]), mtime=0), "gzip.*gunzip"),
    "zstd": (b"\x28\xb5\x2f\xfd\x24\0" + bytes(20), "zstd"),
    "zip": (_zip(), "zip archive.*unpack"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer.*git lfs pull"),
    "frame": (b"\x93TWF\r\n\x1a\n" + bytes(200), "frame of tensorwire"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_every_operation_names_what_it_was_given(tmp_path: Path, name: str) -> None:
    content, expected = FOREIGN[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    for operation in (
        lambda: compress_checkpoint(path, tmp_path / "x"),
        lambda: load_file(path),
        lambda: open_file(path),
        lambda: inspect(path),
    ):
        with pytest.raises(FormatError, match=expected) as caught:
            operation()
        assert caught.value.file == path
    assert expected.split(".*")[0] in verify(path).problems[0].message


@pytest.mark.parametrize("length", [640, 0x088B1F])
def test_a_header_whose_length_looks_like_a_pickle_or_gzip_is_read(tmp_path: Path, length: int) -> None:
    data = container([("a", "U8", (3,), b"123")])
    raw = data[8 : 8 + int.from_bytes(data[:8], "little")].ljust(length)
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + raw + b"123")
    assert load_file(path).keys() == {"a"}
    path.write_bytes(length.to_bytes(8, "little") + raw + b"12")
    with pytest.raises(TruncatedDataError):
        load_file(path)


def test_a_directory_without_safetensors_names_the_model_that_is_there(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "tokenizer.json").write_text(json.dumps({"vocab": ["a"] * 1000}))
    (root / "model.gguf").write_bytes(FOREIGN["gguf"][0])
    with pytest.raises(ValueError, match=r"no \.safetensors file; 'model\.gguf' is a GGUF file"):
        compress_checkpoint(root, tmp_path / "x")


@pytest.mark.parametrize("is_zip", [True, False])
def test_the_advice_for_torch_files_works_for_tied_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_zip: bool
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors.torch")
    weight = torch.arange(600).to(torch.bfloat16).reshape(20, 30)
    tied: dict[str, Any] = {"embed.weight": weight, "head.weight": weight, "transposed": weight.t()}
    path = tmp_path / "pytorch_model.bin"
    torch.save(tied, path, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(FormatError, match=r"torch file|pickle") as caught:
        load_file(path)
    run_advice(str(caught.value), path, monkeypatch)
    converted = load_file(tmp_path / "model.safetensors", framework="pt")
    assert converted.keys() == tied.keys()
    assert all(torch.equal(converted[name], tied[name]) for name in tied)


@pytest.mark.parametrize("name", ["npz", "npy"])
def test_the_advice_for_files_of_numpy_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / f"weights.{name}"
    value = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    if name == "npz":
        np.savez(path, array=value)
    else:
        np.save(path, value)
    with pytest.raises(FormatError, match=name) as caught:
        load_file(path)
    run_advice(str(caught.value), path, monkeypatch)
    assert (load_file(tmp_path / "model.safetensors")["array"] == value).all()


def run_advice(message: str, path: Path, patch: pytest.MonkeyPatch) -> None:
    code = message.split("convert it: ")[1].replace("PATH", repr(str(path)))
    modules = "numpy, safetensors.numpy" if "numpy" in code else "torch, safetensors.torch"
    patch.chdir(path.parent)
    exec(f"import {modules}\n{code}", {})
