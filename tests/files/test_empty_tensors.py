"""A plain tensor without a byte has a recorded hash like any other, which is compared wherever it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorwire
import tensorwire.safetensors.numpy
from reference.tensorwire_reference.checkpoint import PREFIX, content_hash
from reference.tensorwire_reference.checkpoint_writer import compressed_tensors, sign, write_container
from reference.tensorwire_reference.containers import Tensor
from tensorwire import CorruptDataError
from tensorwire.files.load_ahead import LoadAhead
from tensorwire.files.reader import StoredFile
from tests.support.checkpoint_models import weights

pytest.importorskip("torch")

import tensorwire.safetensors.torch

WEIGHT = Tensor("w", "BF16", (8192,), weights(8192, 1))


def write(path: Path, tensors: list[Tensor], hashed: bytes) -> Path:
    """A file whose header is in order, and has the hash of `hashed` for tensor w."""
    metadata = {f"{PREFIX}version": "1", f"{PREFIX}hash:w": content_hash(hashed).hex()}
    path.write_bytes(write_container(tensors, sign(metadata, tensors)))
    return path


def retyped(dtype: str) -> list[Tensor]:
    """A compressed weight, whose marker has got another dtype: a tensor of its own, as is the payload."""
    return [each._replace(dtype=dtype) if not each.data else each for each in compressed_tensors([WEIGHT], "fast")]


FILES: dict[str, list[Tensor]] = {
    "a marker of U8": retyped("U8"),
    "a marker of BF16": retyped("BF16"),
    "a tensor of no rows": [Tensor("w", "F32", (0, 4), b"")],
    "a tensor of no columns": [Tensor("w", "F32", (4, 0), b"")],
    "among others": [Tensor("v", "F32", (3,), bytes(12)), Tensor("w", "F32", (0,), b""), Tensor("x", "U8", (1,), b"x")],
}


def ahead(path: Path) -> Any:
    with StoredFile(path) as stored:
        tensors = [(stored, tensor) for tensor in stored.tensors.values()]
        loading = LoadAhead(tensors, lambda *_: False, 2)
        try:
            return bytes(loading.take(stored, stored.tensors["w"]).data)
        finally:
            loading.close()


def through(path: Path, framework: str, use: Callable[[Any], Any], **options: Any) -> Any:
    with tensorwire.open_file(path, framework, **options) as reader:  # type: ignore[call-overload]
        return use(reader)


WAYS: dict[str, Callable[[Path], Any]] = {
    "load_file": lambda path: tensorwire.load_file(path)["w"],
    "load_file, pt": lambda path: tensorwire.load_file(path, framework="pt")["w"],
    "load_file, bytes": lambda path: tensorwire.load_file(path, framework="bytes")["w"],
    "load_file, compressed": lambda path: tensorwire.load_file(path, framework="pt", compressed=True)["w"],
    "load_file, meta": lambda path: tensorwire.load_file(path, framework="pt", device="meta")["w"],
    "load_file, a directory": lambda path: tensorwire.load_file(path.parent)["w"],
    "get_tensor": lambda path: through(path, "np", lambda reader: reader.get_tensor("w")),
    "get_tensors": lambda path: through(path, "pt", lambda reader: reader.get_tensors()["w"]),
    "slice": lambda path: through(path, "np", lambda reader: reader.get_slice("w")[:]),
    "slice, pt": lambda path: through(path, "pt", lambda reader: reader.get_slice("w")[0:0]),
    "slice, bytes": lambda path: through(path, "bytes", lambda reader: reader.get_slice("w")[:]),
    "slice, dots": lambda path: through(path, "np", lambda reader: reader.get_slice("w")[...]),
    "slice, a list": lambda path: through(path, "np", lambda reader: reader.get_slice("w")[[]]),
    "safetensors.numpy": lambda path: tensorwire.safetensors.numpy.load_file(path)["w"],
    "safetensors.numpy, bytes": lambda path: tensorwire.safetensors.numpy.load(path.read_bytes())["w"],
    "safetensors.torch": lambda path: tensorwire.safetensors.torch.load_file(path)["w"],
    "ahead": ahead,
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("way", WAYS)
def test_a_hash_of_other_content_is_found(tmp_path: Path, file: str, way: str) -> None:
    path = write(tmp_path / "a.safetensors", FILES[file], WEIGHT.data)
    with pytest.raises(CorruptDataError, match="expected content with hash") as caught:
        WAYS[way](path)
    assert caught.value.tensor == "w"


@pytest.mark.parametrize("file", [name for name in FILES if "marker" not in name])
@pytest.mark.parametrize("way", WAYS)
def test_the_right_hash_passes(tmp_path: Path, file: str, way: str) -> None:
    found = WAYS[way](write(tmp_path / "a.safetensors", FILES[file], b""))
    assert len(found) == 0 or found.shape == (4, 0)


def test_without_verify_nothing_is_compared(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", FILES["a marker of U8"], WEIGHT.data)
    assert tensorwire.load_file(path, verify=False)["w"].shape == (0,)
    assert through(path, "np", lambda reader: reader.get_slice("w")[:], verify=False).shape == (0,)


def test_checkpoints_with_such_a_tensor_are_not_passed_on(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", FILES["among others"], WEIGHT.data)
    assert [problem.tensor for problem in tensorwire.verify(path).problems] == ["w"]
    with pytest.raises(CorruptDataError, match="tensor 'w'"):
        tensorwire.decompress_checkpoint(path, tmp_path / "plain.safetensors")
    with pytest.raises(CorruptDataError, match="tensor 'w'"):
        tensorwire.transcode_checkpoint(path, tmp_path / "other.safetensors", profile="compact")
    assert list(tmp_path.iterdir()) == [path]
